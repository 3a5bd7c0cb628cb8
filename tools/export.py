"""The way back: from the tree's commits to patch files, byte for byte."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tools import console, overlay
from tools.errors import ToolError
from tools.git import Repository
from tools.outcome import Outcome
from tools.patch import Patch
from tools.tree import Tree

# Each option removes one way in which git's output depends on its environment.
_DIFF_OPTIONS = (
    "--patch",
    "--binary",
    "--full-index",  # abbreviations grow with the number of objects
    "--unified=1",  # little context drifts little; apply checks the exact place
    "--diff-algorithm=myers",
    "--no-indent-heuristic",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


@dataclass(frozen=True)
class Export:
    """The files of a patch folder as the tree's commits give them."""

    files: dict[str, bytes]

    @classmethod
    def of(cls, tree: Tree, folder: Path) -> "Export":
        """Read the series out of the tree's commits.

        A patch keeps its file name as long as it keeps its subject.

        Raises:
            ToolError: There is no tree, it has uncommitted edits, or a commit
                touches an overlay file or lacks its header.
        """
        state = tree.state
        if state is None:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                f"there is no tree at {tree.project.tree}",
                ("Make it: python -m tools apply",),
            )
        repository = tree.repository
        if paths := repository.changed_paths():
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{tree.project.tree} has uncommitted edits",
                (f"Commit them: git -C {tree.project.tree} commit --all",),
                tuple(paths[:10]),
            )
        names = _names_by_subject(folder)
        patches: list[Patch] = []
        span = f"{state.overlays}..HEAD"
        if merges := repository.git("rev-list", "--merges", span).text.split():
            raise ToolError(
                Outcome.TREE_EDITED,
                f"commit {merges[0][:12]} is a merge, which no patch can hold",
                (f"Make it linear: git -C {tree.project.tree} rebase",),
            )
        listed = repository.git("rev-list", "--reverse", span)
        for number, commit in enumerate(listed.text.split(), start=1):
            shown = repository.git(
                "show", "--no-patch", "--format=%an <%ae>%n%B", commit
            )
            author, _, message = shown.text.partition("\n")
            subject = message.partition("\n")[0]
            name = names.pop(subject, "") or f"{number:04}-{_slug(subject)}.patch"
            diff = repository.git(
                "diff-tree", *_DIFF_OPTIONS, f"{commit}^", commit
            ).stdout
            patch = Patch.from_commit(name, author, message, diff)
            _refuse_overlay_edits(repository, commit, tree.project.root)
            patches.append(patch)
        files = {patch.name: patch.to_bytes() for patch in patches}
        if len(files) != len(patches):
            raise ToolError(
                Outcome.BAD_SERIES,
                "two commits have the same subject and place",
                ("Reword one of them",),
            )
        files["series"] = "".join(f"{patch.name}\n" for patch in patches).encode()
        return cls(files)

    def differences(self, folder: Path) -> list[str]:
        """Names of files whose bytes differ, are missing, or are too many."""
        present = {path.name for path in _exported(folder)}
        names = sorted(present | set(self.files))
        return [
            name
            for name in names
            if name not in present
            or self.files.get(name) != (folder / name).read_bytes()
        ]

    def write(self, folder: Path) -> list[str]:
        """Make the folder equal to the export; return what was written or removed.

        Raises:
            ToolError: The export is empty, which would delete the whole series.
        """
        if len(self.files) == 1 and any(folder.glob("*.patch")):
            raise ToolError(
                Outcome.BAD_SERIES,
                "the tree has no commits after the overlays; exporting it would "
                "delete every patch",
                ("Remove the patches by hand if that is meant",),
            )
        changed = self.differences(folder)
        for name in changed:
            if name in self.files:
                partial = folder / f"{name}.partial"
                partial.write_bytes(self.files[name])
                os.replace(partial, folder / name)
            else:
                (folder / name).unlink()
        return changed


def _exported(folder: Path) -> list[Path]:
    return [*folder.glob("*.patch"), *folder.glob("series")]


def _names_by_subject(folder: Path) -> dict[str, str]:
    """Return the present file names; one that cannot be read is written anew."""
    names = {}
    for path in sorted(folder.glob("*.patch")):
        try:
            names[Patch.parse(path.name, path.read_bytes()).fields["Subject"]] = (
                path.name
            )
        except ToolError as error:
            console.note(f"{error.message}: it will be replaced")
    return names


def _slug(subject: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")
    return words[:48].strip("-") or "patch"


def _refuse_overlay_edits(repository: Repository, commit: str, root: Path) -> None:
    """Raise if a commit changes a file that an overlay laid into the tree."""
    listed = repository.git(
        "diff-tree", "-r", "-z", "--no-renames", "--name-only", f"{commit}^", commit
    )
    changed = set(listed.text.split("\0"))
    for file in overlay.files(root):
        if file.target in changed:
            raise ToolError(
                Outcome.BAD_OVERLAY,
                f"commit {commit[:12]} changes the overlay {file.target}",
                (f"Make the change in {file.source.relative_to(root)} instead",),
            )
