"""A diff cut into its files and hunks, and put together with the right numbers."""

import re
from dataclasses import dataclass

_PLACE = re.compile(rb"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@(.*)")


@dataclass(frozen=True)
class Part:
    """A hunk, or text with the marks of a conflict in place of some.

    Args:
        start: First line of the old text.
        body: Its lines, with their signs.
        scope: The text behind the second `@@`, which is only for people.
        marked: It is text with marks.
    """

    start: int
    body: bytes
    scope: bytes = b""
    marked: bool = False

    def count(self, signs: bytes) -> int:
        """Return the number of lines with one of some signs; none is a space."""
        return sum(line[:1] in signs for line in self.body.split(b"\n")[:-1])

    @property
    def end(self) -> int:
        """The first line of the old text behind it."""
        return self.start + max(self.count(b" -"), 1)


@dataclass(frozen=True)
class Section:
    """What a diff does to one file.

    Args:
        name: The line `diff --git`.
        index: The line with the blob ids; empty where it decides what is applied.
        head: The other lines above the hunks.
        parts: The hunks.
    """

    name: bytes
    index: bytes
    head: bytes
    parts: tuple[Part, ...]

    @property
    def change(self) -> tuple[bytes, tuple[tuple[int, bytes], ...]]:
        """What is done to the file, for comparison."""
        return self.head, changes(self.parts)

    def render(self) -> bytes:
        """Return the text, with places that follow from the hunks."""
        text = [self.name, *_head_with(self.head, self.index)]
        shift = 0
        for part in self.parts:
            if part.marked:
                text.append(part.body)
                continue
            old, new = part.count(b" -"), part.count(b" +")
            start = part.start + shift + (not old) - (not new)
            text.append(
                f"@@ -{_span(part.start, old)} +{_span(start, new)} @@".encode()
                + part.scope
                + b"\n"
                + part.body
            )
            shift += new - old
        return b"".join(text)


def changes(parts: tuple[Part, ...]) -> tuple[tuple[int, bytes], ...]:
    """Return what hunks do and where, for comparison."""
    return tuple((part.start, part.body) for part in parts)


def sections(diff: bytes) -> list[Section]:
    """Return the parts of a diff, file by file."""
    return [_section(text) for text in re.split(rb"(?m)^(?=diff --git )", diff) if text]


def _section(text: bytes) -> Section:
    top, *rest = re.split(rb"(?m)^(?=@@ )", text)
    name, *lines = top.splitlines(keepends=True)
    binary = b"GIT binary patch\n" in lines
    index = [] if binary else [line for line in lines if line.startswith(b"index ")]
    head = b"".join(line for line in lines if line not in index)
    parts = []
    for hunk in rest:
        place, _, body = hunk.partition(b"\n")
        if match := _PLACE.fullmatch(place):
            parts.append(Part(int(match[1]), body, match[2]))
    return Section(name, b"".join(index), head, tuple(parts))


def _head_with(head: bytes, index: bytes) -> list[bytes]:
    """Return the lines above the hunks, with the blob ids where git writes them."""
    modes, names, rest = head.partition(b"--- ")
    return [modes, index, names, rest]


def _span(start: int, size: int) -> str:
    """Return a place as git writes it."""
    return str(start) if size == 1 else f"{start},{size}"
