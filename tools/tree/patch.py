"""One patch: a DEP-3 style header and a git diff, read and written byte for byte."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date

from unidiff.constants import LINE_TYPE_NO_NEWLINE
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as DiffHunk
from unidiff.patch import PatchSet

from tools.base.errors import ToolError
from tools.base.outcome import Outcome

# The header's fields after From and Subject, in the order in which they are
# written; each patch must have all of them.
FIELDS = (
    "Origin",
    "Forwarded",
    "Upstream-Status",
    "Last-Update",
    "SPDX-License-Identifier",
)
_REQUIRED = ("From", "Subject", *FIELDS)
_DIFF = re.compile(rb"^diff --git ", re.MULTILINE)
# No line of a file's text begins so: those have a sign before them.
_BLOB_IDS = re.compile(rb"^index [0-9a-f]+\.\.[0-9a-f]+", re.MULTILINE)
_SECTION = re.compile(rb"^(@@ [-+,0-9 ]+ @@).*", re.MULTILINE)
_DIFF_LINE = re.compile(rb"^diff --git (.*)$", re.MULTILINE)
_FIELD = re.compile(r"([A-Z][A-Za-z-]*): (.+)")
# git drops such characters from the ends of a name.
_AUTHOR = re.compile(r"[^\s.,:;<>\"'\\](?:[^<>]*[^\s.,:;<>\"'\\])? <[^<>\s]+>")


@dataclass(frozen=True)
class Hunk:
    """A hunk as far as its place is concerned.

    Args:
        path: The file, as upstream names it.
        header: The hunk's `@@` line.
        start: First line of the old text, counted from 1.
        old_lines: The lines that the hunk expects there, with their line ends.
        new_lines: The lines that it leaves there.
        added: Those of them that it adds.
        removed: The old lines that it removes.
    """

    path: str
    header: str
    start: int
    old_lines: tuple[bytes, ...]
    new_lines: tuple[bytes, ...] = ()
    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Patch:
    """A patch of the series.

    Args:
        name: Its file name.
        fields: Header fields by name; `Subject`, `From` and all of `FIELDS`.
        description: The text after the fields, without surrounding blank lines.
        diff: The git diff.
    """

    name: str
    fields: dict[str, str]
    description: str
    diff: bytes

    @classmethod
    def parse(cls, name: str, data: bytes) -> "Patch":
        """Parse a patch file.

        Raises:
            ToolError: The header lacks a field, or there is no diff.
        """
        found = _DIFF.search(data)
        if not found:
            raise _bad(name, "it has no `diff --git` line")
        try:
            head = data[: found.start()].decode("utf-8")
        except UnicodeDecodeError as error:
            raise _bad(name, f"its header is not UTF-8: {error}") from error
        fields: dict[str, str] = {}
        lines = head.split("\n")
        while lines and (match := _FIELD.fullmatch(lines[0])):
            fields[match[1]] = match[2]
            lines.pop(0)
        missing = [field for field in _REQUIRED if field not in fields]
        if missing:
            raise _bad(name, f"its header lacks {', '.join(missing)}")
        _check_fields(name, fields)
        text = "\n".join(lines)
        description = text.removesuffix("---\n").strip("\n")
        return cls(name, fields, description, data[found.start() :])

    def head(self) -> str:
        """Return what stands before the diff, with the line `---` at its end."""
        head = [f"{key}: {self.fields[key]}" for key in ("From", "Subject")]
        head += self._trailers()
        if self.description:
            head += ["", self.description]
        return "\n".join([*head, "---", ""])

    def to_bytes(self) -> bytes:
        """Return the patch file; `parse` of it gives this patch again."""
        return self.head().encode() + self.diff

    def _trailers(self) -> list[str]:
        """Return the fields after the subject: those of `FIELDS`, then others."""
        others = [key for key in self.fields if key not in _REQUIRED]
        return [f"{key}: {self.fields[key]}" for key in (*FIELDS, *others)]

    @property
    def message(self) -> str:
        """The commit message that keeps the whole header, for `from_commit`."""
        trailers = "\n".join(self._trailers())
        parts = [self.fields["Subject"], self.description, trailers]
        return "\n\n".join(part for part in parts if part) + "\n"

    @classmethod
    def from_commit(cls, name: str, author: str, message: str, diff: bytes) -> "Patch":
        """Rebuild a patch from its commit.

        Raises:
            ToolError: The message lacks a trailer of `FIELDS`.
        """
        subject, _, rest = message.strip("\n").partition("\n")
        body, _, last = rest.strip("\n").rpartition("\n\n")
        trailers = dict(
            (match[1], match[2])
            for line in (last or rest).strip("\n").split("\n")
            if (match := _FIELD.fullmatch(line))
        )
        missing = [field for field in FIELDS if field not in trailers]
        if missing:
            raise _bad(
                name, f"the commit {subject!r} lacks the trailers {', '.join(missing)}"
            )
        fields = {"From": author, "Subject": subject} | trailers
        _check_fields(name, fields)
        return cls(name, fields, body.strip("\n"), diff)

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
                raise _bad(self.name, f"it renames or copies: {_show(match[0])}")
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
            if file.is_added_file:
                continue
            path = _path(file.source_file)
            for hunk in file:
                header = f"@@ -{hunk.source_start},{hunk.source_length} @@"
                yield Hunk(
                    path,
                    header,
                    hunk.source_start,
                    _lines(hunk, " -"),
                    _lines(hunk, " +"),
                    _lines(hunk, "+"),
                    _lines(hunk, "-"),
                )


def _path(name: str, prefix: str = "a/") -> str:
    """Return a path of a `---` line: git quotes unusual ones as C does."""
    if name.startswith('"'):
        # Python reads the same escapes in a bytes literal.
        escaped = name.encode("ascii", "backslashreplace").decode()
        return bytes(ast.literal_eval(f"b{escaped}")).decode().removeprefix(prefix)
    return name.encode("latin-1").decode().removeprefix(prefix)


def _check_fields(name: str, fields: dict[str, str]) -> None:
    try:
        date.fromisoformat(fields["Last-Update"])
    except ValueError as error:
        raise _bad(name, "Last-Update is not a date (YYYY-MM-DD)") from error
    if not _AUTHOR.fullmatch(fields["From"]):
        raise _bad(name, "From is not `Name <address>` as git keeps it")


def _lines(hunk: DiffHunk, kinds: str) -> tuple[bytes, ...]:
    """Return the hunk's lines of the named kinds, byte for byte."""
    lines: list[bytes] = []
    wanted = False
    for line in hunk:
        if line.line_type == LINE_TYPE_NO_NEWLINE:
            # unidiff gives the line before it a line end all the same.
            if wanted:
                lines[-1] = lines[-1].removesuffix(b"\n")
            continue
        wanted = line.line_type in kinds
        if wanted:
            lines.append(line.value.encode("latin-1"))
    return tuple(lines)


def check_place(name: str, hunk: Hunk, content: bytes | None) -> None:
    """Check that a hunk's old lines stand exactly where it says.

    git itself would search for them elsewhere, and could find a similar function.

    Args:
        name: The patch, for the error.
        hunk: The hunk.
        content: The file as the patches before this one left it; None: no file.

    Raises:
        ToolError: Other lines stand there; expected and found ones are shown.
    """
    where = f"{name} does not apply: {hunk.path}, hunk {hunk.header}"
    if content is None:
        raise _failed(f"{where}: there is no such file", ())
    lines = split_lines(content)
    first = max(hunk.start - 1, 0)
    found = lines[first : first + len(hunk.old_lines)]
    if tuple(found) == hunk.old_lines:
        return
    pairs = list(zip(hunk.old_lines, found, strict=False))
    at = next(
        (i for i, (expected, other) in enumerate(pairs) if expected != other),
        len(pairs),
    )
    moved = places(lines, hunk.old_lines)
    elsewhere = (
        (f"the expected lines stand at line {', '.join(map(str, moved))} instead",)
        if moved
        else ()
    )
    raise _failed(
        where,
        (
            f"expected from line {hunk.start}, first difference at line "
            f"{hunk.start + at}:",
            *(f"  expected: {_show(line)}" for line in hunk.old_lines[at : at + 3]),
            *(f"  found:    {_show(line)}" for line in found[at : at + 3]),
            *elsewhere,
        ),
    )


def split_lines(content: bytes) -> list[bytes]:
    """Return the lines of a file, with their line ends, as git counts them."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def places(lines: list[bytes], wanted: tuple[bytes, ...]) -> list[int]:
    """Return the line numbers at which `wanted` stands, at most five."""
    size = len(wanted)
    starts = (
        i + 1
        for i in range(len(lines) - size + 1)
        if tuple(lines[i : i + size]) == wanted
    )
    return [number for number, _ in zip(starts, range(5), strict=False)]


def _show(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\n").replace("\r", "\\r")


def _failed(message: str, details: tuple[str, ...]) -> ToolError:
    return ToolError(
        Outcome.PATCH_FAILED,
        message,
        ("Mend the patch, or restore the file that it was made for",),
        details,
    )


def _bad(name: str, why: str) -> ToolError:
    return ToolError(Outcome.BAD_PATCH, f"{name}: {why}", (f"Mend {name}",))
