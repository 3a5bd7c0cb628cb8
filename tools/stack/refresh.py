"""From edits in the work tree to the patch and the overlays that they belong to."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tools.base.errors import ToolError
from tools.base.git import IDENTITY
from tools.base.outcome import Outcome
from tools.stack.rewrite import Rewritten, rewrite
from tools.stack.stack import Stack
from tools.tree import overlay
from tools.tree.edits import Snapshot
from tools.tree.folder import slug
from tools.tree.header import BACKPORT, DEFAULTS, Header
from tools.tree.patch import Patch
from tools.tree.placed import PlacedPatch
from tools.tree.transaction import Changes, File


@dataclass(frozen=True)
class Edits:
    """What differs between the work tree and the patches applied to it.

    A new file in a folder to which overlays are laid is an overlay. All other
    files belong to a patch.

    Args:
        snapshot: A commit of the work tree.
        upstream: Changed files that belong to a patch.
        overlays: Changed files that are overlays.
    """

    snapshot: str
    upstream: frozenset[str]
    overlays: frozenset[str]

    @classmethod
    def of(cls, stack: Stack, command: str) -> "Edits":
        """Find the edits.

        Args:
            stack: The series.
            command: What looks for them, for the message of the snapshot.

        Raises:
            ToolError: A file in the tree can be neither patch nor overlay.
        """
        repository, here = stack.repository, stack.commits[stack.position]
        _refuse_repositories(stack)
        snapshot = Snapshot.take(repository, command)
        changed = snapshot.paths_unlike(repository, here)
        base = f"{stack.state.overlays}^"
        laid = repository.paths_between(base, stack.commits[0])
        added = repository.paths_between(here, snapshot.commit, added=True)
        # A file that a patch removed may come back; it is upstream's all the same.
        added &= repository.paths_between(base, snapshot.commit, added=True)
        new = {path for path in added if overlay.source_of(path)}
        if litter := sorted(filter(overlay.is_litter, new)):
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{litter[0]} has the name of a cache or of an editor's file",
                ("Remove it or rename it, then run the command again",),
                tuple(litter[:10]),
            )
        overlays = changed & (laid | new)
        return cls(snapshot.commit, frozenset(changed - overlays), frozenset(overlays))

    @property
    def any(self) -> bool:
        """Whether there are edits."""
        return bool(self.upstream or self.overlays)

    def patched_tree(self, stack: Stack) -> str:
        """Return the id of the work tree's tree, with the overlays as they were."""
        here = stack.commits[stack.position]
        return stack.repository.tree_with(self.snapshot, here, self.overlays)

    def overlay_changes(self, stack: Stack) -> Changes:
        """Return the changes of the overlays' source folders."""
        changes: dict[str, File | None] = {}
        for path in sorted(self.overlays):
            source = overlay.source_of(path)
            assert source
            entry = stack.repository.git("ls-tree", self.snapshot, "--", path).text
            if not entry:
                changes[source] = None
                continue
            mode, _, blob = entry.partition("\t")[0].split(" ")
            data = stack.repository.git("cat-file", "blob", blob).stdout
            changes[source] = File(data, executable=mode == "100755")
        return changes


def refresh(stack: Stack) -> Rewritten:
    """Write the edits into the last applied patch and into the overlays.

    Raises:
        ToolError: No patch is applied, a later patch conflicts with the edits, or
            the edits undo the patch.
    """
    edits = Edits.of(stack, "refresh")
    placed = list(stack.placed)
    if edits.upstream:
        if not stack.position:
            raise ToolError(
                Outcome.TREE_EDITED,
                "no patch is applied that could take the edits",
                ("Make one of them: python -m tools new SUBJECT",),
                tuple(sorted(edits.upstream)[:10]),
            )
        old = placed[stack.position - 1]
        placed[stack.position - 1] = replace(
            old,
            patch=_dated(old.patch),
            after=edits.patched_tree(stack),
        )
    return rewrite(
        stack.tree,
        f"refresh {stack.top}",
        placed,
        stack.position,
        edits.overlay_changes(stack),
        edits.snapshot,
        mend=_by_git(stack),
    )


def new(
    stack: Stack, subject: str, description: str, author: str, origin: str = ""
) -> Rewritten:
    """Make a patch of the edits, behind the last applied one.

    Args:
        stack: The series.
        subject: Of the patch; its file name is made of it.
        description: Why it is needed.
        author: `Name <address>`; "": the fork itself.
        origin: As DEP-3 has it; "": a backport if it has an author, else our own.

    Raises:
        ToolError: There are no edits of upstream's files, or a later patch conflicts
            with them.
    """
    edits = Edits.of(stack, "new")
    if not edits.upstream:
        raise ToolError(
            Outcome.USAGE,
            "the work tree has no edits of upstream's files to make a patch of",
            (f"Change files in {stack.tree.project.tree} first",),
        )
    origin = origin or (BACKPORT if author else DEFAULTS["Origin"])
    patch = header(stack, subject, description, author, origin)
    placed = list(stack.placed)
    before = stack.trees[stack.position]
    placed.insert(stack.position, PlacedPatch(patch, before, edits.patched_tree(stack)))
    return rewrite(
        stack.tree,
        f"new {patch.name}",
        placed,
        stack.position + 1,
        edits.overlay_changes(stack),
        edits.snapshot,
        mend=_behind_all(stack),
    )


def header(
    stack: Stack, subject: str, description: str, author: str, origin: str
) -> Patch:
    """Return a patch without a diff, named by the next free number.

    Raises:
        ToolError: A field cannot stand in a header.
    """
    number = 1 + max((int(name[:4]) for name in stack.names), default=0)
    fields = {"From": author or IDENTITY, "Subject": subject} | DEFAULTS
    fields |= {"Origin": origin, "Last-Update": _today()}
    name = f"{number:04}-{slug(subject)}.patch"
    made = Header.of(fields, description.strip("\n"))
    patch = Patch(name, made, b"diff --git a/x b/x\n")
    try:
        if Patch.parse(name, patch.to_bytes()).fields == fields:
            return patch
        why = "subject or description would be read back differently"
    except ToolError as error:
        why = error.message
    raise ToolError(
        Outcome.USAGE,
        why,
        ("Give the subject in one line, and the author as `Name <address>`",),
    )


def _dated(patch: Patch) -> Patch:
    return replace(patch, header=patch.header.with_field("Last-Update", _today()))


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _by_git(stack: Stack) -> tuple[str, ...]:
    """Return how to solve a conflict of later patches with edits of this one."""
    git = f"git -C {stack.tree.project.tree}"
    here, top = stack.commits[stack.position][:12], stack.state.commit[:12]
    return (
        f"Solve it by git: {git} commit --all --amend --no-edit && "
        f"{git} cherry-pick {here}..{top}",
        "then: python -m tools export",
    )


def _behind_all(stack: Stack) -> tuple[str, ...]:
    """Return how to make a patch of edits that later patches conflict with."""
    git = f"git -C {stack.tree.project.tree} stash"
    return (
        f"Make it the last patch: {git} --include-untracked",
        f"then: python -m tools push --all && {git} pop",
        "then run the command again",
    )


def _refuse_repositories(stack: Stack) -> None:
    for path in stack.repository.changed_paths():
        if path.endswith("/"):
            raise ToolError(
                Outcome.TREE_EDITED,
                f"{stack.tree.project.tree / path} is a git repository of its own",
                ("Move it away, then run the command again",),
            )
