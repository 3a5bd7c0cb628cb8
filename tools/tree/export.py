"""The way back: from the tree's commits to patch files, byte for byte."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.base import console
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.tree import overlay
from tools.tree.patch import Patch
from tools.tree.series import listed, text_with
from tools.tree.tree import Tree

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
class Step:
    """A patch and what it was made from, so that it can be merged elsewhere.

    Args:
        patch: The patch.
        before: Git tree id without it.
        after: Git tree id with it.
    """

    patch: Patch
    before: str
    after: str


@dataclass(frozen=True)
class Export:
    """The patches that the tree's commits make."""

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, tree: Tree, folder: Path) -> "Export":
        """Read the series out of the tree's commits.

        A patch keeps its file name as long as it keeps its subject.

        Raises:
            ToolError: There is no tree, it has uncommitted edits or popped patches,
                a rebase or the like is under way, or a commit touches an overlay
                file or lacks its header.
        """
        tree.recover()
        state = tree.state
        if state is None:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                f"there is no tree at {tree.project.tree}",
                ("Make it: python -m tools apply",),
            )
        tree.refuse_operation()
        if paths := tree.repository.changed_paths():
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{tree.project.tree} has uncommitted edits",
                (
                    "Put them into the last applied patch: python -m tools refresh",
                    f"or commit them: git -C {tree.project.tree} commit --all",
                ),
                tuple(paths[:10]),
            )
        export = cls.between(tree, folder, state.overlays, "HEAD")
        popped = export.removed(folder)
        if state.position and popped:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                f"{len(popped)} patches are popped from {tree.project.tree}; "
                "exporting it would delete them",
                ("Push them: python -m tools push --all",),
                tuple(popped),
            )
        return export

    @classmethod
    def between(cls, tree: Tree, folder: Path, old: str, new: str) -> "Export":
        """Read patches out of the commits from `old`, which is left out, to `new`.

        Raises:
            ToolError: A commit is a merge, touches an overlay file or lacks its
                header.
        """
        repository = tree.repository
        span = f"{old}..{new}"
        if merges := repository.git("rev-list", "--merges", span).text.split():
            raise ToolError(
                Outcome.TREE_EDITED,
                f"commit {merges[0][:12]} is a merge, which no patch can hold",
                (f"Make it linear: git -C {tree.project.tree} rebase",),
            )
        commits = repository.git("rev-list", "--reverse", span).text.split()
        names = _names_by_subject(folder)
        steps = []
        for number, commit in enumerate(commits, start=1):
            shown = repository.git(
                "show", "--no-patch", "--format=%T %P%n%an <%ae>%n%B", commit
            )
            trees, author, message = shown.text.split("\n", 2)
            after, _, parent = trees.partition(" ")
            before = repository.tree_of(parent)
            subject = message.partition("\n")[0]
            present = names.get(subject)
            name = present.pop(0) if present else f"{number:04}-{slug(subject)}.patch"
            diff = diff_between(repository, before, after)
            patch = Patch.from_commit(name, author, message, diff)
            _refuse_overlay_edits(repository, commit, tree.project.root)
            steps.append(Step(patch, before, after))
        return cls(tuple(steps))

    def removed(self, folder: Path) -> list[str]:
        """Names of patches in the folder that the export has not."""
        names = {patch.name for patch in self.patches}
        return sorted(p.name for p in folder.glob("*.patch") if p.name not in names)

    @property
    def patches(self) -> tuple[Patch, ...]:
        """The patches in order."""
        return tuple(step.patch for step in self.steps)

    def differences(self, folder: Path) -> list[str]:
        """Names of files whose bytes differ, are missing, or are too many.

        Raises:
            ToolError: The export is empty, which would delete the whole series, or
                two patches would have one name.
        """
        if not self.steps and any(folder.glob("*.patch")):
            raise ToolError(
                Outcome.BAD_SERIES,
                "the tree has no commits after the overlays; exporting it would "
                "delete every patch",
                ("Remove the patches by hand if that is meant",),
            )
        files = files_of(folder, self.patches)
        present = {p.name for p in (*folder.glob("*.patch"), *folder.glob("series"))}
        return [
            name
            for name in sorted(present | set(files))
            if name not in present or files.get(name) != (folder / name).read_bytes()
        ]


def diff_between(repository: Repository, before: str, after: str) -> bytes:
    """Return the diff of two trees in the form that patches have."""
    return repository.git("diff-tree", *_DIFF_OPTIONS, before, after).stdout


def files_of(folder: Path, patches: Sequence[Patch]) -> dict[str, bytes]:
    """Return the files that hold a series, by name, `series` among them.

    A present file whose patch differs only cosmetically stays as it is, and so do
    the comments in `series`.

    Args:
        folder: The patch folder as it is.
        patches: The series.

    Raises:
        ToolError: Two patches have one name.
    """
    files = {patch.name: _text_of(folder, patch) for patch in patches}
    if len(files) != len(patches):
        raise ToolError(
            Outcome.BAD_SERIES,
            "two commits have the same subject and place",
            ("Reword one of them",),
        )
    series = folder / "series"
    text = series.read_text("utf-8") if series.exists() else ""
    if listed(text) != list(files):
        text = text_with(text, list(files))
    return files | {"series": text.encode()}


def _text_of(folder: Path, patch: Patch) -> bytes:
    new = patch.to_bytes()
    path = folder / patch.name
    if path.is_file():
        old = path.read_bytes()
        head = len(patch.header.render().encode())
        if old[:head] == new[:head] and patch.differs_cosmetically(
            replace(patch, diff=old[head:])
        ):
            return old
    return new


def _names_by_subject(folder: Path) -> dict[str, list[str]]:
    """Return the present names in order; what cannot be read is written anew."""
    series = folder / "series"
    order = listed(series.read_text("utf-8")) if series.is_file() else []
    present = sorted(path.name for path in folder.glob("*.patch"))
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys([*(n for n in order if n in present), *present]):
        try:
            patch = Patch.parse(name, (folder / name).read_bytes())
            names.setdefault(patch.fields["Subject"], []).append(name)
        except ToolError as error:
            console.note(f"{error.message}: it will be replaced")
    return names


def slug(subject: str) -> str:
    """Return the words of a subject as they are in a file name."""
    words = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")
    return words[:48].strip("-") or "patch"


def _refuse_overlay_edits(repository: Repository, commit: str, root: Path) -> None:
    """Raise if a commit changes a file that an overlay laid into the tree."""
    changed = repository.paths_between(f"{commit}^", commit)
    for file in overlay.files(root):
        if file.target in changed:
            raise ToolError(
                Outcome.BAD_OVERLAY,
                f"commit {commit[:12]} changes the overlay {file.target}",
                (f"Make the change in {file.source.relative_to(root)} instead",),
            )
