"""Where the tree, the patches and the overlays stand to each other."""

from dataclasses import dataclass

from tools.base.errors import ToolError
from tools.base.project import Project
from tools.source.pin import Pin
from tools.tree import overlay, underway
from tools.tree.inputs import Inputs
from tools.tree.sides import Newer, Sides
from tools.tree.state import State
from tools.tree.transaction import Transaction
from tools.tree.tree import Tree

_REBASE = "python -m tools rebase"


@dataclass(frozen=True)
class Status:
    """What `status` tells; reading it changes nothing.

    Args:
        version: The pinned release.
        commit: Its upstream commit.
        tree: "missing", "current", "stale" (made of other inputs) or "interrupted"
            (a run was killed).
        applied: The patches that the work tree has.
        popped: The patches that it has not.
        edits: Files changed in the work tree.
        commits: Commits in the tree that are not in patches/.
        changed: Patches and overlays that are not as in the tree, by their path in
            the checkout.
        newer: The side that moved since tree and patches were equal: "tree",
            "files", "both", or "".
        mend: How to make them equal.
        under_way: What takes several commands, for example "a rebase to 0.33.0".
        half: The command that was killed as it replaced files, and is not completed
            yet.
    """

    version: str
    commit: str
    tree: str
    applied: tuple[str, ...]
    popped: tuple[str, ...]
    edits: tuple[str, ...] = ()
    commits: int = 0
    changed: tuple[str, ...] = ()
    newer: str = ""
    mend: tuple[str, ...] = ()
    under_way: str = ""
    half: str = ""

    @classmethod
    def of(cls, project: Project) -> "Status":
        """Look at a checkout.

        Raises:
            ToolError: Pin or series are broken.
        """
        under_way = underway.title(project)
        if pending := Transaction.pending(project):
            return cls._of_half(project, pending, under_way)
        inputs = Inputs.read(project)
        names = inputs.series.names
        pin = inputs.pin
        tree = Tree(project)
        state = tree.state if tree.repository.exists else None
        if state is None:
            return cls(
                pin.version, pin.commit, "missing", (), names, under_way=under_way
            )
        return cls._of_tree(tree, state, inputs, under_way)

    @classmethod
    def _of_tree(
        cls, tree: Tree, state: State, inputs: Inputs, under_way: str
    ) -> "Status":
        """Look at a tree, and at how its inputs differ from those it was made of."""
        repository = tree.repository
        changed = _changed_overlays(tree, state, inputs)
        made = inputs.series.names  # the patches that the tree was made of
        newer = ""
        mend: tuple[str, ...] = ()
        try:
            sides = Sides.of(tree, state)
            made = tuple(patch.name for patch in sides.made.patches)
            changed += sides.files
            newer = sides.newer.value
            mend = sides.steps if sides.newer is Newer.BOTH else ()
        except ToolError as error:
            changed.append(f"patches/: {error.message}")
        position = tree.commits(state).index(state.here)
        ahead = repository.git("rev-list", "--count", f"{state.here}..HEAD").text
        return cls(
            inputs.pin.version,
            inputs.pin.commit,
            _tree_word(state, inputs),
            made[:position],
            made[position:],
            tuple(repository.changed_paths()),
            int(ahead),
            tuple(changed),
            newer,
            mend,
            under_way,
        )

    @classmethod
    def _of_half(
        cls, project: Project, pending: Transaction, under_way: str
    ) -> "Status":
        """Look at a checkout in which some files are new and some are old."""
        pin = Pin.read(project.pin_file, locked=False)
        return cls(
            *(pin.version, pin.commit, "interrupted", (), ()),
            under_way=under_way,
            half=pending.title,
        )

    @property
    def message(self) -> str:
        """One line for people."""
        under_way = f"; {self.under_way} is under way" if self.under_way else ""
        if self.half:
            return f"vllm {self.version}; {self.half} was interrupted{under_way}"
        if self.tree == "missing":
            return f"vllm {self.version}; there is no tree yet{under_way}"
        total = len(self.applied) + len(self.popped)
        last = f", the last is {self.applied[-1]}" if self.applied else ""
        return (
            f"vllm {self.version}; the tree is {self.tree}; {len(self.applied)} of "
            f"{total} patches are applied{last}{under_way}"
        )

    @property
    def details(self) -> tuple[str, ...]:
        """Further lines for people."""
        return (
            *(f"edited in the tree: {path}" for path in self.edits),
            *([f"commits newer than patches/: {self.commits}"] if self.commits else []),
            *(f"newer than the tree: {path}" for path in self.changed),
        )

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What the user can do now."""
        if self.half:
            return ("Complete it: python -m tools apply",)
        steps = []
        if self.under_way:
            steps.append(f"See where {self.under_way} stands: {_REBASE} --status")
        if self.tree == "missing":
            return (*steps, "Make it: python -m tools apply")
        if self.mend:
            return (*steps, *self.mend)
        if self.commits:
            steps.append("Write the commits to patches/: python -m tools export")
        if self.edits:
            steps.append("Write the edits back: python -m tools refresh")
        if self.tree != "current":
            steps.append("Make the tree anew: python -m tools apply --lock")
        if self.popped:
            steps.append("Apply the other patches: python -m tools push --all")
        return tuple(steps)


def _tree_word(state: State, inputs: Inputs) -> str:
    if state.moving:
        return "interrupted"
    return "current" if state.inputs == inputs.digest() else "stale"


def _changed_overlays(tree: Tree, state: State, inputs: Inputs) -> list[str]:
    """Return the overlay files whose source is not as it was laid."""
    repository = tree.repository
    paths = "".join(f"{file.source}\n" for file in inputs.overlays)
    blobs = repository.git(
        "hash-object", "--no-filters", "--stdin-paths", stdin=paths.encode()
    ).text.split()
    now = {
        file.target: f"{file.mode} blob {blob}"
        for file, blob in zip(inputs.overlays, blobs, strict=True)
    }
    laid = repository.paths_between(f"{state.overlays}^", state.overlays)
    listed = repository.git("ls-tree", "-r", "-z", state.overlays).text.split("\0")
    entries = (entry.split("\t") for entry in listed if entry)
    then = {path: what for what, path in entries if path in laid}
    targets = sorted(t for t in now | then if now.get(t) != then.get(t))
    return [overlay.source_of(target) or target for target in targets]
