"""A hunk and its place: it must stand exactly where it says."""

from dataclasses import dataclass

from unidiff.constants import LINE_TYPE_NO_NEWLINE
from unidiff.patch import Hunk as DiffHunk

from tools.base.errors import ToolError
from tools.base.outcome import Outcome


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
        begins_with_context: It begins with a line that stays.
        ends_with_context: It ends with one.
    """

    path: str
    header: str
    start: int
    old_lines: tuple[bytes, ...]
    new_lines: tuple[bytes, ...] = ()
    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    begins_with_context: bool = True
    ends_with_context: bool = True

    @classmethod
    def of(cls, path: str, hunk: DiffHunk) -> "Hunk":
        """Take what is needed of a parsed hunk."""
        kinds = [line.line_type for line in hunk]
        kinds = [kind for kind in kinds if kind != LINE_TYPE_NO_NEWLINE]
        return cls(
            path,
            f"@@ -{hunk.source_start},{hunk.source_length} @@",
            hunk.source_start,
            _lines(hunk, " -"),
            _lines(hunk, " +"),
            _lines(hunk, "+"),
            _lines(hunk, "-"),
            kinds[:1] == [" "],
            kinds[-1:] == [" "],
        )


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
    end = first + len(hunk.old_lines)
    found = lines[first:end]
    if tuple(found) != hunk.old_lines:
        raise _failed(where, _differences(hunk, lines, found))
    begins = hunk.begins_with_context or not lines[:first]
    ends = hunk.ends_with_context or not lines[end:]
    if not begins or not ends:
        raise _failed(
            f"{where}: it has no line of context, as `diff -U0` makes it",
            (),
            "Make the diff with a line of context: git diff --unified=1",
        )


def _differences(hunk: Hunk, lines: list[bytes], found: list[bytes]) -> tuple[str, ...]:
    """Return where the lines of a file are not those that a hunk expects."""
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
    return (
        f"expected from line {hunk.start}, first difference at line {hunk.start + at}:",
        *(f"  expected: {shown(line)}" for line in hunk.old_lines[at : at + 3]),
        *(f"  found:    {shown(line)}" for line in found[at : at + 3]),
        *elsewhere,
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


def shown(line: bytes) -> str:
    """Return a line as people can read it."""
    return line.decode("utf-8", "replace").rstrip("\n").replace("\r", "\\r")


def _failed(message: str, details: tuple[str, ...], mend: str = "") -> ToolError:
    return ToolError(
        Outcome.PATCH_FAILED,
        message,
        (mend or "Mend the patch, or restore the file that it was made for",),
        details,
    )
