"""One patch: a header and a git diff, read and written byte for byte."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as DiffHunk
from unidiff.patch import PatchSet

from tools.base import text
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.tree.header import Header
from tools.tree.hunk import Hunk, shown

_DIFF = re.compile(rb"^diff --git ", re.MULTILINE)
# No line of a file's text begins so: those have a sign before them.
_BLOB_IDS = re.compile(rb"^index [0-9a-f]+\.\.[0-9a-f]+", re.MULTILINE)
_SECTION = re.compile(rb"^(@@ [-+,0-9 ]+ @@).*", re.MULTILINE)
_DIFF_LINE = re.compile(rb"^diff --git (.*)$", re.MULTILINE)
_SIGNED = re.compile(rb"^[ +-].*", re.MULTILINE)
_ADDED_MARK = re.compile(rb"^\+(<{7}|>{7}|\|{7})( |$)", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """A patch of the series.

    Args:
        name: Its file name.
        header: Author and message.
        diff: The git diff.
    """

    name: str
    header: Header
    diff: bytes

    @classmethod
    def parse(cls, name: str, data: bytes) -> "Patch":
        """Parse a patch file; `to_bytes` of the result is the file again.

        Raises:
            ToolError: The header is not one that git keeps, or there is no diff.
        """
        head, diff = split(name, data)
        patch = cls(name, Header.parse(name, head), diff)
        if why := diff_flaw(diff):
            raise _bad(name, why)
        return patch

    def to_bytes(self) -> bytes:
        """Return the patch file; `parse` of it gives this patch again."""
        return self.header.render().encode() + self.diff

    @property
    def fields(self) -> dict[str, str]:
        """The header's fields, `From` and `Subject` among them."""
        return self.header.fields

    @property
    def description(self) -> str:
        """Why the patch is needed."""
        return self.header.description

    @property
    def message(self) -> str:
        """The commit's message, for `from_commit`."""
        return self.header.message

    @classmethod
    def from_commit(cls, name: str, author: str, message: str, diff: bytes) -> "Patch":
        """Rebuild a patch from its commit.

        Raises:
            ToolError: The message lacks a field, or cannot stand in a patch.
        """
        return cls(name, Header.from_message(author, message), diff)

    def differs_cosmetically(self, other: "Patch") -> bool:
        """Whether only blob ids and the text behind a hunk's place differ.

        Nothing depends on either, but in a binary patch, and they change with every
        release.
        """
        if b"\nGIT binary patch\n" in self.diff + other.diff:
            return False
        return replace(self, diff=self.plain_diff()) == replace(
            other, diff=other.plain_diff()
        )

    def plain_diff(self) -> bytes:
        """Return the diff without blob ids and without the text behind `@@`."""
        return _SECTION.sub(rb"\1", _BLOB_IDS.sub(b"index", self.diff))

    def paths(self) -> set[str]:
        """Return the files that the diff names, as git without renames writes it.

        Raises:
            ToolError: The diff renames or copies a file.
        """
        found = set()
        for match in _DIFF_LINE.finditer(self.diff):
            names = match[1].decode("latin-1")
            half = len(names) // 2
            old, new = _path(names[:half]), _path(names[half + 1 :], "b/")
            if old != new:
                raise _bad(self.name, f"it renames or copies: {shown(match[0])}")
            found.add(old)
        return found

    def hunks(self) -> Iterator[Hunk]:
        """Iterate over the hunks of all files.

        Raises:
            ToolError: The diff cannot be read.
        """
        try:
            # latin-1 maps every byte to one character and back.
            files = PatchSet(self.diff.decode("latin-1"))
        except UnidiffParseError as error:
            raise _bad(self.name, f"its diff is malformed: {error}") from error
        for file in files:
            shift = 0
            for hunk in () if file.is_added_file else file:
                shift = self._follow(hunk, shift)
                yield Hunk.of(_path(file.source_file), hunk)

    def _follow(self, hunk: DiffHunk, shift: int) -> int:
        """Return by how many lines a file has grown behind a hunk.

        git looks for a hunk's old lines around its second number. A wrong one makes
        it change equal lines elsewhere.

        Raises:
            ToolError: The second number does not follow from the hunks above it.
        """
        start = hunk.source_start + shift
        start += (not hunk.source_length) - (not hunk.target_length)
        if hunk.target_start != start:
            place = f"@@ -{hunk.source_start},{hunk.source_length}"
            raise _bad(
                self.name,
                f"hunk {place} +{hunk.target_start},{hunk.target_length} @@ should be "
                f"at +{start}, after the hunks above it",
            )
        return shift + int(hunk.target_length - hunk.source_length)


def split(name: str, data: bytes) -> tuple[bytes, bytes]:
    """Return what stands before the diff, and the diff.

    A line `diff --git` in the description is left to the header's own check.

    Raises:
        ToolError: There is no diff.
    """
    starts = [match.start() for match in _DIFF.finditer(data)]
    if not starts:
        raise _bad(name, text.flaw(data) or "it has no `diff --git` line")
    ruled = (start for start in starts if data[:start].endswith(b"\n---\n"))
    start = next(ruled, starts[0])
    return data[:start], data[start:]


def diff_flaw(diff: bytes) -> str:
    """Return what shows that a diff was damaged on its way; "" if nothing does."""
    if diff.partition(b"\n")[0].endswith(b"\r"):
        return "its diff has CRLF line ends: save it with LF"
    # What stays or goes is upstream's, and may look like anything.
    if text.conflict_line(_SIGNED.sub(b"", diff)) or _ADDED_MARK.search(diff):
        return "its diff has the marks of a conflict: solve it"
    return ""


def _path(name: str, prefix: str = "a/") -> str:
    """Return a path of a `---` line: git quotes unusual ones as C does."""
    if name.startswith('"'):
        # Python reads the same escapes in a bytes literal.
        escaped = name.encode("ascii", "backslashreplace").decode()
        return bytes(ast.literal_eval(f"b{escaped}")).decode().removeprefix(prefix)
    return name.encode("latin-1").decode().removeprefix(prefix)


def _bad(name: str, why: str) -> ToolError:
    return ToolError(Outcome.BAD_PATCH, f"{name}: {why}", (f"Mend {name}",))
