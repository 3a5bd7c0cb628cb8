"""Three-way merge of patch files: by their hunks, so that only hunks can conflict.

Blob ids, and the numbers behind `@@`, follow from the hunks: a line added in the
first one changes the numbers of all others. They are left out of the comparison and
made again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise

from tools.base.errors import ToolError
from tools.tree.patch import split
from tools.tree.section import Part, Section, changes, sections
from tools.tree.text_merge import MergedText, merge_text

_UPDATE = re.compile(rb"^Last-Update: (\S+)$", re.MULTILINE)


def merge_patches(base: bytes, ours: bytes, theirs: bytes) -> MergedText:
    """Merge two versions of a patch file.

    Raises:
        ToolError: git cannot be run.
    """
    try:
        cut = [split("", side) for side in (base, ours, theirs)]
    except ToolError:
        return merge_text(base, ours, theirs)
    head = merge_text(*_of_one_date([head for head, _ in cut]))
    sides = [{file.name: file for file in sections(diff)} for _, diff in cut]
    names = sorted(set().union(*sides))
    merged = [_merge_section(*(side.get(name) for side in sides)) for name in names]
    if any(section is None for section in merged):
        # One side removed what the other one changed.
        return replace(merge_text(base, ours, theirs), clean=False)
    found = [section for section in merged if section and section.name]
    clean = not any(part.marked for section in found for part in section.parts)
    data = head.data + b"".join(section.render() for section in found)
    return MergedText(data, head.clean and clean)


def _of_one_date(heads: Sequence[bytes]) -> list[bytes]:
    """Return headers with the last date that one of them has."""
    last = max(date for head in heads for date in _UPDATE.findall(head) or [b""])
    return [_UPDATE.sub(b"Last-Update: " + last, head) for head in heads]


_GONE = Section(b"", b"", b"", ())


def _merge_section(
    base: Section | None, ours: Section | None, theirs: Section | None
) -> Section | None:
    """Merge what is done to a file; `_GONE`: nothing, None: that is open."""
    before, mine, other = (side and side.change for side in (base, ours, theirs))
    if other in (before, mine):
        return ours or _GONE
    if mine == before:
        return theirs or _GONE
    if ours is None or theirs is None:
        return None
    begin = base or replace(ours, parts=(), index=b"")
    head = merge_text(begin.head, ours.head, theirs.head)
    if not head.clean:
        return None
    parts = _merge_parts(begin.parts, ours.parts, theirs.parts)
    return replace(ours, head=head.data, parts=parts, index=_index(begin, ours, theirs))


def _index(base: Section, ours: Section, theirs: Section) -> bytes:
    """Return the blob ids: the old one of the side that changed it; ours, if both.

    `git am --3way` needs the old one; the new one follows at the next refresh.
    """
    old = [side.index.partition(b"..")[0] for side in (base, ours, theirs)]
    return theirs.index if old[1] == old[0] != old[2] else ours.index


def _merge_parts(
    base: tuple[Part, ...], ours: tuple[Part, ...], theirs: tuple[Part, ...]
) -> tuple[Part, ...]:
    """Merge the hunks of a file, in the places that they have in the base's file."""
    shifts = [_Shift.of(base, side) for side in (ours, theirs)]
    sides = (base, shifts[0].back(ours), shifts[1].back(theirs))
    result: list[Part] = []
    for begin, end in _regions([part for side in sides for part in side]):
        inside = [tuple(p for p in side if begin <= p.start < end) for side in sides]
        result += _merge_region(*inside)
    return tuple(
        replace(part, start=part.start + sum(shift.at(part.start) for shift in shifts))
        for part in result
    )


def _regions(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Return the stretches of lines that hunks cover, those in touch as one."""
    regions: list[tuple[int, int]] = []
    for part in sorted(parts, key=lambda part: part.start):
        if regions and part.start < regions[-1][1]:
            begin, end = regions.pop()
            regions.append((begin, max(end, part.end)))
        else:
            regions.append((part.start, part.end))
    return regions


def _merge_region(
    base: tuple[Part, ...], ours: tuple[Part, ...], theirs: tuple[Part, ...]
) -> tuple[Part, ...]:
    """Merge hunks of one stretch of lines."""
    if changes(theirs) in (changes(base), changes(ours)):
        return ours
    if changes(ours) == changes(base):
        return theirs
    merged = merge_text(*map(_plain, (base, ours, theirs)))
    if merged.clean:
        scopes = {part.start: part.scope for part in (*theirs, *ours)}
        parts = _parse(merged.data, scopes)
        if all(a.end <= b.start for a, b in pairwise(parts)):
            return parts
    sides = [Section(b"", b"", b"", side).render() for side in (ours, theirs)]
    text = b"<<<<<<< ours\n%b=======\n%b>>>>>>> theirs\n" % tuple(sides)
    return (Part(ours[0].start if ours else theirs[0].start, text, marked=True),)


def _plain(parts: tuple[Part, ...]) -> bytes:
    """Return hunks without what follows from others."""
    return b"".join(b"@@ %d\n%b" % (part.start, part.body) for part in parts)


def _parse(text: bytes, scopes: dict[int, bytes]) -> tuple[Part, ...]:
    hunks = [hunk.partition(b"\n") for hunk in re.split(rb"(?m)^@@ ", text)[1:]]
    return tuple(
        Part(int(start), body, scopes.get(int(start), b"")) for start, _, body in hunks
    )


@dataclass(frozen=True)
class _Shift:
    """How far a side's hunks stand from the base's, since other patches changed.

    Args:
        pairs: Places of equal hunks in the base and in the side.
    """

    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, base: tuple[Part, ...], side: tuple[Part, ...]) -> "_Shift":
        """Compare two versions of the hunks of a file."""
        old, new = ([part.body for part in parts] for parts in (base, side))
        blocks = SequenceMatcher(None, old, new, False).get_matching_blocks()
        return cls(
            tuple(
                (base[block.a + i].start, side[block.b + i].start)
                for block in blocks
                for i in range(block.size)
            )
        )

    def at(self, start: int, *, in_side: bool = False) -> int:
        """Return the shift at a line of the base, or of the side."""
        before = [pair for pair in self.pairs if pair[in_side] <= start]
        at_base, at_side = (before[-1:] or list(self.pairs[:1]) or [(0, 0)])[0]
        return at_side - at_base

    def back(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Return the side's hunks in the places that they have in the base's file."""
        return tuple(
            replace(part, start=part.start - self.at(part.start, in_side=True))
            for part in parts
        )
