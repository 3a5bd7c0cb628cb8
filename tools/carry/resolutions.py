"""Resolutions of conflicts, one file each under patches/resolutions/.

A resolution belongs to what the two sides of a conflict say, as in git's rerere, and
not to a place: it holds wherever and whenever the same two texts meet again.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.tree.hunk import split_lines

FOLDER = "resolutions"
_HEAD, _MIDDLE, _TAIL = (
    "<<<<<<< upstream\n",
    "=======\n",
    ">>>>>>> patch\n",
)
_MARK = re.compile(rb"^(<<<<<<<|\|\|\|\|\|\|\||=======|>>>>>>>)( .*)?\r?$")
_OPEN, _BASE, _SPLIT, _CLOSE = b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>"
_LEFT = re.compile(rb"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)


@dataclass(frozen=True)
class Clash:
    """A conflict in a file: the text of both sides, with their line ends."""

    upstream: bytes
    patch: bytes

    @property
    def id(self) -> str:
        """The name under which its resolution is stored."""
        total = hashlib.sha256(b"%d\0" % len(self.upstream))
        total.update(self.upstream + self.patch)
        return total.hexdigest()[:16]


@dataclass(frozen=True)
class Resolution:
    """What a clash is to become.

    Args:
        clash: The clash.
        text: The text in its place.
        about: For people: patch, file, and the rebase that it was made in.
    """

    clash: Clash
    text: bytes
    about: dict[str, str]

    @property
    def filename(self) -> str:
        """Its file, below the folder of resolutions."""
        return f"{self.clash.id}.txt"

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        head = "".join(f"{key}: {value}\n" for key, value in self.about.items())
        return (
            f"{head}{_HEAD}".encode()
            + self.clash.upstream
            + _MIDDLE.encode()
            + self.clash.patch
            + _TAIL.encode()
            + self.text
        )

    @property
    def is_readable(self) -> bool:
        """Whether its file gives it back: no line in it looks like a mark."""
        try:
            return Resolution.parse(self.filename, self.to_bytes()) == self
        except ToolError:
            return False

    @classmethod
    def parse(cls, name: str, data: bytes) -> "Resolution":
        """Read a file back.

        Raises:
            ToolError: It is malformed, or its name is not that of its clash.
        """
        head, found, rest = data.partition(_HEAD.encode())
        upstream, split, rest = rest.partition(_MIDDLE.encode())
        patch, closed, text = rest.partition(_TAIL.encode())
        pairs = [line.partition(": ") for line in head.decode().splitlines()]
        about = {key: value for key, _, value in pairs}
        resolution = cls(Clash(upstream, patch), text, about)
        if not (found and split and closed) or resolution.filename != name:
            raise ToolError(
                Outcome.BAD_SERIES,
                f"{FOLDER}/{name} is not a stored resolution, or was changed",
                (f"Restore or remove patches/{FOLDER}/{name}",),
            )
        return resolution


def read(patches: Path) -> dict[str, Resolution]:
    """Return the stored resolutions, by the id of their clash.

    Raises:
        ToolError: One is malformed.
    """
    found = [
        Resolution.parse(path.name, path.read_bytes())
        for path in sorted((patches / FOLDER).glob("*.txt"))
    ]
    return {resolution.clash.id: resolution for resolution in found}


def has_marks(content: bytes) -> bool:
    """Whether a file still has conflict marks."""
    return bool(_LEFT.search(content))


def first_mark(content: bytes) -> int:
    """Return the line, from 1, of the first conflict mark that `has_marks` finds."""
    found = _LEFT.search(content)
    return content.count(b"\n", 0, found.start()) + 1 if found else 0


def choose(content: bytes, side: str) -> bytes:
    """Return a file in which each clash is as one side has it.

    Args:
        content: The file with conflict marks.
        side: "patch" or "upstream".
    """
    pieces, clashes = split(content)
    texts = [clash.patch if side == "patch" else clash.upstream for clash in clashes]
    return _filled(pieces, texts)


def split(content: bytes) -> tuple[list[bytes], list[Clash]]:
    """Split a file with conflict marks.

    Returns:
        The text around the clashes, one piece more than there are clashes, and the
        clashes.
    """
    pieces, clashes = [b""], []
    sides = {_OPEN: b"", _SPLIT: b""}
    part = b""
    for line in split_lines(content):
        match = _MARK.match(line.rstrip(b"\r\n"))
        mark = match[1] if match else b""
        if mark == _OPEN and not part:
            sides, part = {_OPEN: b"", _SPLIT: b""}, _OPEN
        elif (mark == _BASE and part == _OPEN) or (
            mark == _SPLIT and part in (_OPEN, _BASE)
        ):
            part = mark
        elif mark == _CLOSE and part:
            clashes.append(Clash(sides[_OPEN], sides[_SPLIT]))
            pieces.append(b"")
            part = b""
        elif part:
            if part in sides:
                sides[part] += line
        else:
            pieces[-1] += line
    return pieces, clashes


def solve(content: bytes, stored: dict[str, Resolution]) -> bytes | None:
    """Return a file with its clashes replaced; None if one has no resolution."""
    pieces, clashes = split(content)
    if not clashes or any(clash.id not in stored for clash in clashes):
        return None
    return _filled(pieces, [stored[clash.id].text for clash in clashes])


def _filled(pieces: list[bytes], texts: list[bytes]) -> bytes:
    """Return the pieces around the clashes with a text for each clash."""
    return pieces[0] + b"".join(
        text + piece for text, piece in zip(texts, pieces[1:], strict=True)
    )


def learn(content: bytes, solved: bytes, about: dict[str, str]) -> list[Resolution]:
    """Return the resolutions that a person made.

    Args:
        content: The file with conflict marks.
        solved: The same file without them.
        about: For the resolutions.

    Returns:
        One for each clash; none at all if the text around them was changed too, since
        then it is not known what replaced what. A clash whose text looks like the
        marks of a stored resolution is left out.
    """
    pieces, clashes = split(content)
    texts = list(_between(pieces, solved))
    if not clashes or len(texts) != len(clashes):
        return []
    made = [
        Resolution(clash, text, about)
        for clash, text in zip(clashes, texts, strict=True)
    ]
    return [resolution for resolution in made if resolution.is_readable]


def _between(pieces: list[bytes], solved: bytes) -> Iterator[bytes]:
    """Yield the texts that stand between the pieces, as far as these are found."""
    first, *middle = pieces
    if not middle or not solved.startswith(first):
        return
    at = len(first)
    for piece in middle[:-1]:
        found = solved.find(piece, at) if piece else -1
        if found < 0:
            return
        yield solved[at:found]
        at = found + len(piece)
    last = middle[-1]
    end = len(solved) - len(last)
    if end >= at and solved.endswith(last):
        yield solved[at:end]
