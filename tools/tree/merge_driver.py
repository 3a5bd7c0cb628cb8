"""git's merge driver for what the tools write: patches, the series, the lock.

git calls it where `.gitattributes` names it and the checkout's own configuration says
what it is; elsewhere git merges these files as any text.
"""

import os
from pathlib import Path

from tools.base.git import without_git
from tools.base.process import Completed, run
from tools.base.project import Project
from tools.tree.patch_merge import merge_patches
from tools.tree.text_merge import MergedText, merge_series, merge_text

_SETTINGS = {
    "merge.tagma.name": "patches by their hunks",
    "merge.tagma.driver": "tools/bin/merge-driver %O %A %B %P",
}


def merge(path: str, base: bytes, ours: bytes, theirs: bytes) -> MergedText:
    """Merge two versions of a file of the checkout.

    Args:
        path: The file, below the checkout.
        base: What both began with.
        ours: One version.
        theirs: The other one.

    Raises:
        ToolError: git cannot be run.
    """
    if path.endswith(".patch"):
        return merge_patches(base, ours, theirs)
    if path.endswith("/series"):
        return merge_series(base, ours, theirs)
    if path.endswith("/tree.lock"):
        # No side's is right; apply compares it, and apply --lock renews it.
        return MergedText(ours, True)
    return merge_text(base, ours, theirs)


def install(root: Path) -> bool:
    """Name the driver in a checkout's git configuration.

    Returns:
        Whether it was not named there before, and now is.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top.status != 0 or Path(top.text).resolve() != root:
        return False
    missing = {
        name: value
        for name, value in _SETTINGS.items()
        if _git(root, "config", "--local", name).text != value
    }
    done = [_git(root, "config", "--local", *item).status for item in missing.items()]
    return bool(done) and not any(done)


def offer(project: Project) -> str:
    """Install the driver; return a line for people if that is news."""
    if not (project.root / "tools" / "bin" / "merge-driver").is_file():
        return ""
    if not install(project.root):
        return ""
    return "git merges patches by their hunks in this checkout now (merge.tagma)"


def _git(root: Path, *args: str) -> Completed:
    return run(["git", *args], cwd=root, env=without_git(os.environ), check=False)
