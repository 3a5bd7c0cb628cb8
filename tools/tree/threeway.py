"""The three-way merge of trees, by git, with the sides named."""

from dataclasses import dataclass, field, replace

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome

_STAGES = {"1": "base", "2": "upstream", "3": "patch"}
_REGULAR = ("100644", "100755")
_SUBMODULE = "160000"


@dataclass(frozen=True)
class Conflict:
    """A file that the merge could not settle.

    Args:
        path: Where the merge left it. Where a file and a folder have one name, git
            gives the file another one: see `name`.
        kind: git's name for it, for example "contents" or "modify/delete".
        versions: Blob ids: "base" (what the patch was made for), "upstream" (what it
            is merged into) and "patch"; one that lacks the file is left out.
        modes: git's modes of these versions, for example "100755".
    """

    path: str
    kind: str
    versions: dict[str, str]
    modes: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The path that was meant."""
        return self.path.removesuffix("~upstream").removesuffix("~patch")

    @property
    def is_text(self) -> bool:
        """Whether base and upstream have it as a file whose lines can be compared."""
        sides = [self.modes.get(side) for side in ("base", "upstream")]
        return self.kind != "binary" and all(side in _REGULAR for side in sides)

    @property
    def modes_clash(self) -> bool:
        """Whether both sides give it a mode of their own, which no mark can show."""
        base, ours, theirs = (self.modes.get(side) for side in _STAGES.values())
        return bool(ours and theirs) and ours != theirs and base not in (ours, theirs)

    @property
    def what(self) -> str:
        """What the sides did to it, for people."""
        if self.name != self.path:
            return f"{self.kind}; one of them is at {self.path}"
        has = set(self.versions)
        if has == {"base", "patch"}:
            return f"{self.kind}: upstream deleted it, the patch changes it"
        if has == {"base", "upstream"}:
            return f"{self.kind}: the patch deletes it, upstream changed it"
        return self.kind


@dataclass(frozen=True)
class Merged:
    """The result of a merge.

    Args:
        tree: Git tree id; where there are conflicts, with marks.
        conflicts: The files that could not be settled.
    """

    tree: str
    conflicts: tuple[Conflict, ...]


def three_way(
    repository: Repository, base: str, ours: str, theirs: str, *, renames: bool = True
) -> Merged:
    """Merge the change from tree `base` to tree `theirs` into tree `ours`.

    Args:
        repository: Where the trees are; nothing but objects is written.
        base: Git tree id.
        ours: Git tree id; called "upstream" in marks and conflicts.
        theirs: Git tree id; called "patch".
        renames: Follow files to new names.

    Raises:
        ToolError: git is too old.
    """
    # git merges commits; these three give it the merge base that is meant.
    root = repository.commit_tree(base, "base\n", None)
    sides = [repository.commit_tree(tree, "side\n", root) for tree in (ours, theirs)]
    follow = () if renames else ("-c", "merge.renames=false")
    done = repository.git(
        *(*follow, "merge-tree", "--write-tree", "-z", "--messages", *sides),
        check=False,
    )
    if done.status not in (0, 1):
        raise ToolError(
            Outcome.COMMAND_FAILED,
            f"git merge-tree failed with status {done.status}",
            ("It needs git 2.38 or later: git --version",),
            tuple(done.error_text.splitlines()[-5:]),
        )
    tree, *fields = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    if done.status == 0:
        return Merged(tree, ())
    names = {sides[0]: "upstream", sides[1]: "patch", root[:12]: "base"}
    found = _conflicts(fields)
    named = tuple(replace(c, path=_named(c.path, names)) for c in found)
    return Merged(_name_sides(repository, tree, found, names), named)


def _conflicts(fields: list[str]) -> tuple[Conflict, ...]:
    """Parse what merge-tree says after the tree: stages of files, then messages."""
    end = fields.index("") if "" in fields else len(fields)
    kinds = _kinds(fields[end + 1 :])
    versions: dict[str, dict[str, str]] = {}
    modes: dict[str, dict[str, str]] = {}
    for entry in fields[:end]:
        about, _, path = entry.partition("\t")
        mode, blob, stage = about.split(" ")
        versions.setdefault(path, {})[_STAGES[stage]] = blob
        modes.setdefault(path, {})[_STAGES[stage]] = mode
    return tuple(
        Conflict(
            path,
            kinds.get(path, "contents"),
            versions.get(path, {}),
            modes.get(path, {}),
        )
        for path in (versions or kinds)
    )


def _kinds(fields: list[str]) -> dict[str, str]:
    """Return the kind of each path's conflict; "contents" only if there is no other."""
    kinds: dict[str, str] = {}
    rest = iter(fields)
    for count in rest:
        if not count.isdigit():
            break
        paths = [next(rest) for _ in range(int(count))]
        kind, _ = next(rest), next(rest)
        if kind.startswith("CONFLICT"):
            name = kind.partition("(")[2].rstrip(")")
            known = kinds if name == "contents" else {}
            kinds |= {path: known.get(path, name) for path in paths}
    return kinds


def _named(path: str, names: dict[str, str]) -> str:
    """Return a path to which git gave a commit's id, with the side's name instead."""
    stem, tilde, side = path.rpartition("~")
    return f"{stem}~{names[side]}" if tilde and side in names else path


def _name_sides(
    repository: Repository,
    tree: str,
    conflicts: tuple[Conflict, ...],
    names: dict[str, str],
) -> str:
    """Return the tree with sides named in marks and paths, not by commit ids."""
    entries = []
    for conflict in conflicts:
        entry = repository.entry(tree, conflict.path)
        if not entry or entry.mode == _SUBMODULE:
            continue
        content = repository.content(entry.blob)
        for commit, name in names.items():
            for mark in ("<<<<<<<", "|||||||", ">>>>>>>"):
                old = f"{mark} {commit}".encode()
                content = content.replace(old, f"{mark} {name}".encode())
        path, new = _named(conflict.path, names), repository.store(content)
        entries.append(f"0 {'0' * 40}\t{conflict.path}\0")
        entries.append(f"{entry.mode} {new}\t{path}\0")
    listed = "".join(entries).encode("utf-8", "surrogateescape")
    return repository.tree_with_entries(tree, listed)
