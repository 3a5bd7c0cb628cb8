"""The way back: from the tree's commits to patch files, byte for byte."""

from dataclasses import dataclass
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.tree import overlay
from tools.tree.folder import files_of, names_by_subject, slug
from tools.tree.patch import Patch
from tools.tree.placed import PlacedPatch
from tools.tree.state import State
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
class Export:
    """The patches that the tree's commits make."""

    placed: tuple[PlacedPatch, ...]

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
                _commit_or_refresh(tree, state),
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
        names = names_by_subject(folder)
        placed = []
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
            placed.append(PlacedPatch(patch, before, after))
        return cls(tuple(placed))

    def removed(self, folder: Path) -> list[str]:
        """Names of patches in the folder that the export has not."""
        names = {patch.name for patch in self.patches}
        return sorted(p.name for p in folder.glob("*.patch") if p.name not in names)

    @property
    def patches(self) -> tuple[Patch, ...]:
        """The patches in order."""
        return tuple(one.patch for one in self.placed)

    def differences(self, folder: Path) -> list[str]:
        """Names of files whose bytes differ, are missing, or are too many.

        Raises:
            ToolError: The export is empty, which would delete the whole series, or
                two patches would have one name.
        """
        if not self.placed and any(folder.glob("*.patch")):
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


def _commit_or_refresh(tree: Tree, state: State) -> tuple[str, ...]:
    """Return how to keep edits in the work tree, be it at a commit of its own."""
    if tree.repository.resolve("HEAD") == state.here:
        return (
            "Put them into the last applied patch: python -m tools refresh",
            "or make a patch of them: python -m tools new SUBJECT",
        )
    git = f"git -C {tree.project.tree}"
    amend = f"{git} add --all && {git} commit --amend --no-edit"
    return (f"Put them into the last commit: {amend}",)


def diff_between(repository: Repository, before: str, after: str) -> bytes:
    """Return the diff of two trees in the form that patches have."""
    return repository.git("diff-tree", *_DIFF_OPTIONS, before, after).stdout


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
