"""Which side moved since the tree and the patch files were last equal."""

from dataclasses import dataclass
from enum import Enum

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source.pin import Pin
from tools.tree.export import Export
from tools.tree.folder import file_digests
from tools.tree.state import State
from tools.tree.tree import Tree


class Newer(Enum):
    """The side that moved. The value is the name in JSON."""

    NEITHER = ""
    FILES = "files"
    TREE = "tree"
    BOTH = "both"


@dataclass(frozen=True)
class Sides:
    """The tree's commits and the patch files, beside what the tree was made of.

    Args:
        tree: The tree.
        state: Its state, which says what it was made of.
        made: The series that it was made of.
        head: The commit that is checked out.
        files: Patch files that are not as the tree was made of them, and the pin.
    """

    tree: Tree
    state: State
    made: Export
    head: str
    files: tuple[str, ...]

    @classmethod
    def of(cls, tree: Tree, state: State) -> "Sides":
        """Compare both sides with the series that the tree was made of.

        Raises:
            ToolError: The commits of the tree cannot be read as patches.
        """
        project, repository = tree.project, tree.repository
        made = Export.between(tree, project.patches, state.overlays, state.commit)
        now = file_digests(project.patches)
        files = [
            f"patches/{name}"
            for name in made.differences(project.patches)
            # The same file, or the name of a patch whose subject changed.
            if now.get(name) != state.patches.get(name)
        ]
        base = repository.tree_of(f"{state.overlays}^")
        if Pin.read(project.pin_file, locked=False).tree != base:
            files.append("upstream/pin.toml")
        head = repository.git("rev-parse", "HEAD").text
        return cls(tree, state, made, head, tuple(files))

    @property
    def newer(self) -> Newer:
        """Which of the two moved."""
        if self.head == self.state.here:
            return Newer.FILES if self.files else Newer.NEITHER
        return Newer.BOTH if self.files else Newer.TREE

    @property
    def message(self) -> str:
        """What is newer, for people."""
        tree = self.tree.project.tree
        return {
            Newer.NEITHER: f"patches/ and {tree} are equal",
            Newer.FILES: f"patches/ is newer than {tree}",
            Newer.TREE: f"the commits of {tree} are newer than patches/",
            Newer.BOTH: f"patches/ and the commits of {tree} both changed since they "
            "were equal",
        }[self.newer]

    @property
    def steps(self) -> tuple[str, ...]:
        """How to make them equal without losing either."""
        if self.newer is Newer.TREE:
            return ("Write the commits: python -m tools export",)
        if self.newer is Newer.FILES:
            return ("Make the tree anew: python -m tools apply --lock",)
        git = f"git -C {self.tree.project.tree}"
        aside = "Make the tree anew, which keeps a copy of the commits: "
        return (
            f"{aside}python -m tools apply --lock --drop",
            f"then make them on it: {git} {self._again()}",
            f"then: python -m tools {'export' if self._on_top else 'refresh'}",
        )

    @property
    def _on_top(self) -> bool:
        """Whether the commits are new ones behind the series."""
        done = self.tree.repository.git(
            "merge-base", "--is-ancestor", self.state.commit, self.head, check=False
        )
        return done.status == 0

    def _again(self) -> str:
        """Return the git command that makes the tree's changes once more."""
        if self._on_top:
            return f"cherry-pick {self.state.commit[:12]}..{self.head[:12]}"
        copy = self.tree.project.dropped / f"{self.head[:12]}.patch"
        return f"apply --3way {copy}"

    def refuse_overwriting(self) -> None:
        """Stop before an export would write over patch files that are newer.

        Raises:
            ToolError: There are some; the error names what to do.
        """
        if self.files:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                self.message,
                (
                    *self.steps,
                    "Or write the tree over the files, which are kept as copies: "
                    "python -m tools export --force",
                ),
                self.files,
            )
