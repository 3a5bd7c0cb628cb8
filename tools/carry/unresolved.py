"""What is still open in the files at which a patch stopped, and how a side is taken.

A merge leaves marks only in text. Where it cannot (pictures, deleted files, modes, a
file in the place of a folder), a file is open as long as it is as the merge left it,
unless its user says which side it shall be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.base.git import Repository, TreeEntry
from tools.carry import resolutions
from tools.carry.evidence import file_in
from tools.tree.threeway import Conflict

SIDES = ("patch", "upstream")
PLACE = "place"  # the kind of a conflict that only the check of functions sees


@dataclass(frozen=True)
class Choice:
    """The trees between which a user decides.

    Args:
        repository: Where they are.
        upstream: The new release with the patches before this one.
        patch: The old tree with this patch.
        merged: What the merge left.
    """

    repository: Repository
    upstream: str
    patch: str
    merged: str

    def unresolved(
        self, conflicts: Sequence[Conflict], tree: str
    ) -> Iterator[tuple[str, str]]:
        """Say what is open in each file.

        Args:
            conflicts: The files on which nothing was said yet.
            tree: What the user has made of `merged`.

        Yields:
            Each file that is open, and why.
        """
        for conflict in conflicts:
            if what := self._open(conflict, tree):
                yield conflict.name, f"is open: {what}"

    def marked(self, tree: str) -> Iterator[tuple[str, str]]:
        """Yield the files with conflict marks that no side brought along, and where."""
        repository = self.repository
        for path in sorted(repository.paths_between(self.upstream, tree)):
            if not resolutions.has_marks(self._text(tree, path)):
                continue
            sides = (self._text(side, path) for side in (self.upstream, self.patch))
            if not any(map(resolutions.has_marks, sides)):
                line = resolutions.first_mark(self._text(tree, path))
                yield path, f"still has conflict marks, the first at line {line}"

    def taken(
        self, conflicts: Sequence[Conflict], side: str, tree: str
    ) -> tuple[str, frozenset[str]]:
        """Give one file as one side has it.

        Where marks show the conflict only the marked lines are taken from that side;
        all else stays as it is.

        Args:
            conflicts: Those that have the file's name.
            side: One of `SIDES`.
            tree: What the user has made of `merged`.

        Returns:
            The new tree, and the paths that may differ in it.
        """
        first = conflicts[0]
        now = self.repository.entry(tree, first.path)
        if any(conflict.path != conflict.name for conflict in conflicts):
            return self._whole(first.name, side, tree)
        wanted = self._version(first, side)
        if now and resolutions.has_marks(self._text(self.merged, first.path)):
            text = self._text(tree, first.path)
            blob = self.repository.store(resolutions.choose(text, side))
            wanted = TreeEntry(first.modes.get(side, now.mode), blob)
        return self._with(tree, {first.path: wanted}), frozenset({first.path})

    def _open(self, conflict: Conflict, tree: str) -> str:
        """Return what is open in a file; "" if nothing is."""
        merged, now = (
            self.repository.entry(side, conflict.path) for side in (self.merged, tree)
        )
        has = set(conflict.versions)
        upstream = self.repository.entry(self.upstream, conflict.path)
        if has == {"upstream"} and merged == upstream:
            return ""  # upstream's own, which the patch leaves alone
        if has == {"base"} and not merged:
            return ""  # both sides moved it away; where it went has its own entry
        if conflict.path != conflict.name:
            return conflict.what if now else ""
        if now == merged:
            return conflict.what
        if conflict.modes_clash and now and merged and now.mode == merged.mode:
            modes = (f"{side} {conflict.modes[side]}" for side in SIDES)
            return f"its mode: {', '.join(modes)}"
        return ""

    def _version(self, conflict: Conflict, side: str) -> TreeEntry | None:
        """Return a file as a side has it; None if that has no such file."""
        if conflict.kind == PLACE:
            tree = self.merged if side == "patch" else self.upstream
            return self.repository.entry(tree, conflict.path)
        if side not in conflict.versions:
            return None
        return TreeEntry(conflict.modes[side], conflict.versions[side])

    def _whole(self, name: str, side: str, tree: str) -> tuple[str, frozenset[str]]:
        """Give a name, and all below it, as one side has it: a file or a folder."""
        made_up = {f"{name}~{other}" for other in SIDES}
        source = self.patch if side == "patch" else self.upstream
        gone = self._below(tree, name, *made_up)
        wanted: dict[str, TreeEntry | None] = dict.fromkeys(gone)
        wanted |= {
            path: self.repository.entry(source, path)
            for path in self._below(source, name)
        }
        return self._with(tree, wanted), frozenset(wanted)

    def _below(self, tree: str, *names: str) -> set[str]:
        listed = self.repository.git(
            "ls-tree", "-r", "-z", "--name-only", tree, "--", *names
        )
        return set(listed.text.split("\0")) - {""}

    def _with(self, tree: str, files: dict[str, TreeEntry | None]) -> str:
        """Return a tree with some files replaced or, where None is given, removed."""
        gone = (f"0 {'0' * 40}\t{path}\0" for path in files)
        new = (
            f"{file.mode} {file.blob}\t{path}\0" for path, file in files.items() if file
        )
        entries = "".join((*gone, *new)).encode("utf-8", "surrogateescape")
        return self.repository.tree_with_entries(tree, entries)

    def _text(self, tree: str, path: str) -> bytes:
        return file_in(self.repository, tree, path) or b""
