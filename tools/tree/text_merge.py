"""Three-way merges of texts: any text, a series, and what can be made again."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.base.git import clean_environment
from tools.base.process import run
from tools.tree.series import listed, text_with


@dataclass(frozen=True)
class MergedText:
    """A merge.

    Args:
        data: What it gives, with marks where both sides changed the same.
        clean: There are no such marks.
    """

    data: bytes
    clean: bool


def merge_text(
    base: bytes, ours: bytes, theirs: bytes, *, union: bool = False
) -> MergedText:
    """Merge by lines, as git does.

    Args:
        base: The text that both sides began with.
        ours: One side.
        theirs: The other one.
        union: Keep the lines of both sides, ours first, instead of marks.

    Raises:
        ToolError: git cannot be run.
    """
    if ours == theirs or theirs == base:
        return MergedText(ours, True)
    if ours == base:
        return MergedText(theirs, True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, data in (("ours", ours), ("base", base), ("theirs", theirs)):
            (folder / side).write_bytes(data)
        done = run(
            [
                *("git", "merge-file", "--stdout", *(["--union"] if union else [])),
                *("-L", "ours", "-L", "base", "-L", "theirs"),
                *("ours", "base", "theirs"),
            ],
            cwd=folder,
            env=clean_environment(folder.parent),
            check=False,
        )
    return MergedText(done.stdout, done.status == 0)


def merge_series(base: bytes, ours: bytes, theirs: bytes) -> MergedText:
    """Merge two `series` files: what either side added, removed or moved.

    Patches that both sides add at one place stand one behind the other, ours first.
    """
    names = [listed(side.decode()) for side in (base, ours, theirs)]
    order = _merge_order(*names)
    if order is None:
        return merge_text(base, ours, theirs)
    # Comments of both sides, before the names that they stand at.
    both = merge_text(base, ours, theirs, union=True).data.decode()
    lines: list[str] = []
    for line in both.splitlines(keepends=True):
        if line not in lines or not listed(line):
            lines.append(line)
    return MergedText(text_with("".join(lines), order).encode(), True)


def _merge_order(
    base: list[str], ours: list[str], theirs: list[str]
) -> list[str] | None:
    """Return the merged names; None if both sides moved patches differently."""
    stay = set(base) & set(ours) & set(theirs)
    at_base, at_ours, at_theirs = (
        [name for name in side if name in stay] for side in (base, ours, theirs)
    )
    if at_theirs in (at_base, at_ours):
        first, second, ahead = ours, theirs, False
    elif at_ours == at_base:
        first, second, ahead = theirs, ours, True
    else:
        return None
    gone = set(base) - stay
    result = [name for name in first if name not in gone]
    before = ""
    for name in second:
        if name not in result and name not in gone:
            place = result.index(before) + 1 if before else 0
            # Behind what the other side put at the same place, if that comes first.
            while not ahead and place < len(result) and result[place] not in base:
                place += 1
            result.insert(place, name)
        before = name if name in result else before
    return result
