"""The build folder emptied, but for what only the user has."""

import shutil
import sys
from pathlib import Path

from tools.base import atomic
from tools.base.errors import ToolError
from tools.base.project import Project
from tools.tree.tree import Tree


def clean(project: Project) -> Path | None:
    """Remove generated files. The caller holds the project's lock.

    Copies of dropped edits stay, and so do the environment that runs this and the
    lock. A tree with edits, commits or stashes moves as it is to the copies.

    Returns:
        Where the tree is now, if it was kept.
    """
    kept = None
    if project.tree.exists() and _has_work(Tree(project)):
        kept = _next_folder(project.dropped)
        kept.parent.mkdir(exist_ok=True)
        atomic.move(project.tree, kept)
    stay = {project.dropped, project.build / ".lock", *_own_folders()}
    for path in project.build.iterdir():
        if path in stay:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return kept


def _has_work(tree: Tree) -> bool:
    """Whether the tree holds anything that the tools did not put there."""
    try:
        tree.recover()
        tree.refuse_edits()
        state = tree.state
    except ToolError:
        return True
    if state is None:
        return False
    # Stashes too, but no copies of what was dropped: these are in files.
    listed = tree.repository.git(
        *("rev-list", "--max-count=1", "--exclude=refs/tagma/*", "--all"),
        *("--not", state.commit),
    )
    return bool(listed.text)


def _own_folders() -> set[Path]:
    prefix = Path(sys.prefix)
    return {prefix, *prefix.parents, prefix.resolve(), *prefix.resolve().parents}


def _next_folder(folder: Path) -> Path:
    number = 1
    while (folder / f"tree-{number}").exists():
        number += 1
    return folder / f"tree-{number}"
