"""Evidence that upstream has already what a patch does."""

from collections.abc import Iterator

from tools.base.git import Repository
from tools.tree.hunk import Hunk, places, split_lines
from tools.tree.threeway import Merged


def has_all(
    repository: Repository, hunks: list[Hunk], tip: str, merged: Merged
) -> bool:
    """Whether upstream has all that a conflicting patch does.

    Hunks show that for text alone: not for new files, modes and pictures.
    """
    changed = repository.paths_between(tip, merged.tree)
    return (
        bool(hunks)
        and changed <= {hunk.path for hunk in hunks}
        and all(c.is_text and not c.modes_clash for c in merged.conflicts)
        and all(_is_upstream(repository, hunk, tip) for hunk in hunks)
    )


def _is_upstream(repository: Repository, hunk: Hunk, tip: str) -> bool:
    """Whether upstream has a hunk: its lines stand in the file, the old ones do not.

    The added lines need their context on one side only: upstream may have gone on
    from there.
    """
    content = file_in(repository, tip, hunk.path)
    if content is None or not any(line.strip() for line in hunk.added):
        return False
    lines = split_lines(content)
    if places(lines, hunk.old_lines):
        return False
    return any(len(places(lines, part)) == 1 for part in _parts(hunk))


def _parts(hunk: Hunk) -> Iterator[tuple[bytes, ...]]:
    """Yield what a hunk leaves: all of it, and without context on one side."""
    new, old = hunk.new_lines, hunk.old_lines
    pairs = list(zip(new, old, strict=False))
    lead = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    back = list(zip(reversed(new), reversed(old), strict=False))
    tail = next((i for i, (a, b) in enumerate(back) if a != b), len(back))
    yield new
    if lead:
        yield new[: len(new) - min(tail, len(new) - lead)]
    if tail:
        yield new[min(lead, len(new) - tail) :]


def of_all(repository: Repository, hunks: list[Hunk], tip: str) -> tuple[str, ...]:
    """Name the upstream lines that make each hunk needless."""
    details = []
    for hunk in hunks:
        content = file_in(repository, tip, hunk.path)
        if content is None:
            details.append(f"{hunk.path}: upstream removed the file, as the patch does")
            continue
        details.append(_where(hunk, split_lines(content)))
        details += [_show("+", line) for line in hunk.added[:4]]
        details += [
            f"{_show('-', line)}  (gone there too)" for line in hunk.removed[:4]
        ]
    return tuple(details)


def _where(hunk: Hunk, lines: list[bytes]) -> str:
    """Say where upstream's lines are that make a hunk needless."""
    shown = (
        (at[0], len(part))
        for part in _parts(hunk)
        if len(at := places(lines, part)) == 1
    )
    if found := next(shown, None):
        last = found[0] + found[1] - 1
        return f"{hunk.path}:{found[0]}-{last} are the lines that it makes"
    first = [line.strip() for line in hunk.added if line.strip()][:1]
    at = [n for n, line in enumerate(lines, 1) if [line.strip()] == first]
    text = f"{hunk.path}: upstream has what {hunk.header} does"
    return f"{text}, at line {at[0]}" if at else text


def _show(sign: str, line: bytes) -> str:
    return f"  {sign} {line.decode('utf-8', 'replace').strip()}"


def of_some(repository: Repository, hunks: list[Hunk], tip: str) -> tuple[str, ...]:
    """Name the hunks that upstream has."""
    return tuple(
        f"{hunk.path}, hunk {hunk.header}: upstream has this part already"
        for hunk in hunks
        if _is_upstream(repository, hunk, tip)
    )


def file_in(repository: Repository, tree: str, path: str) -> bytes | None:
    """Return a file of a tree; None if there is no such file."""
    entry = repository.entry(tree, path)
    return repository.content(entry.blob) if entry else None
