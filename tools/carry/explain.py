"""What upstream did where a patch conflicts, in a few lines for people."""

from collections.abc import Iterator

from tools.base.git import Repository
from tools.carry.place import changes, distance, scopes_of_change
from tools.tree.hunk import Hunk, split_lines
from tools.tree.threeway import Conflict

_NEAR = 3  # lines between a patch's change and upstream's that may be its cause
_SHOWN = 12
_TELLING = 16  # bytes; shorter lines stand in too many files
_FILES = 3


def explain(
    repository: Repository,
    conflict: Conflict,
    hunks: list[Hunk],
    before: str,
    tip: str,
) -> Iterator[str]:
    """Say in a few lines what upstream did where a patch conflicts."""
    base = conflict.versions.get("base")
    upstream = conflict.versions.get("upstream")
    if not conflict.is_text or not base or not upstream:
        yield f"{conflict.name}: {conflict.what}"
        if base and not upstream:
            yield from _likenesses(repository, conflict.path, before, tip)
            gone = _lines_of(conflict.path, hunks)
            yield from _whereabouts(repository, conflict.path, gone, tip)
        return
    ours = [
        range(hunk.start, hunk.start + len(hunk.old_lines))
        for hunk in hunks
        if hunk.path == conflict.path
    ]
    found = changes(repository, base, upstream)
    near = [c for c in found if any(distance(c.old, span) <= _NEAR for span in ours)]
    scopes = scopes_of_change(repository, base, upstream, near) or set()
    where = ", ".join(sorted(filter(None, scopes)))
    inside = f", in {where}" if where else ""
    yield (
        f"{conflict.path}: {conflict.what}; upstream changed {len(found)} places, "
        f"{len(near)} of them at this patch's lines{inside}"
    )
    lines = [text for c in near for text in (f"@@ line {c.new.start} @@", *c.text)]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"… {len(lines) - _SHOWN} more lines"
    left = {line.strip() for line in split_lines(repository.content(upstream))}
    gone = _lines_of(conflict.path, hunks) - left
    yield from _whereabouts(repository, conflict.path, gone, tip)


def _likenesses(
    repository: Repository, path: str, before: str, tip: str
) -> Iterator[str]:
    """Name the file that is most like one which upstream deleted."""
    listed = repository.git(
        *("diff-tree", "-r", "-z", "--find-renames=30%", "--diff-filter=R"),
        *("--name-status", before, tip),
    ).text.split("\0")
    for status, old, new in zip(listed[::3], listed[1::3], listed[2::3], strict=False):
        if old == path:
            yield f"  most like it, by {int(status[1:])} %: {new}"


def _lines_of(path: str, hunks: list[Hunk]) -> set[bytes]:
    """Return the old lines of a file's hunks that tell one place from another."""
    return {
        line.strip()
        for hunk in hunks
        if hunk.path == path
        for line in hunk.old_lines
        if len(line.strip()) >= _TELLING
    }


def _whereabouts(
    repository: Repository, path: str, lines: set[bytes], tip: str
) -> Iterator[str]:
    """Say in which other files lines stand that a patch was made for."""
    if not lines:
        return
    texts = [line.decode("utf-8", "surrogateescape") for line in sorted(lines)]
    patterns = [part for text in texts for part in ("-e", text)]
    found = []
    listed = repository.git(
        *("grep", "-F", "--count", "-z", "-I", *patterns, tip), check=False
    )
    for entry in filter(None, listed.text.split("\n")):
        name, _, count = entry.rpartition("\0")
        found.append((min(int(count), len(lines)), name.partition(":")[2]))
    others = [(count, name) for count, name in found if name != path]
    for matches, name in sorted(others, reverse=True)[:_FILES]:
        yield f"  its lines stand in {name} ({matches} of {len(lines)})"
