"""What upstream did where a patch conflicts, in a few lines for people."""

from collections.abc import Iterator

from tools.base.git import Repository
from tools.carry.place import changes, distance, scopes_of_change
from tools.tree.hunk import Hunk
from tools.tree.threeway import Conflict

_NEAR = 3  # lines between a patch's change and upstream's that may be its cause
_SHOWN = 12


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
            yield from _destinations(repository, conflict, hunks, before, tip)
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


def _destinations(
    repository: Repository, conflict: Conflict, hunks: list[Hunk], before: str, tip: str
) -> Iterator[str]:
    """Say where a deleted file's content went: by similarity, or by its lines."""
    listed = repository.git(
        *("diff-tree", "-r", "-z", "--find-renames=30%", "--diff-filter=R"),
        *("--name-status", before, tip),
    ).text.split("\0")
    for status, old, new in zip(listed[::3], listed[1::3], listed[2::3], strict=False):
        if old == conflict.path:
            yield f"  most like it, by {int(status[1:])} %: {new}"
    wanted = {
        line.strip()
        for hunk in hunks
        if hunk.path == conflict.path
        for line in hunk.old_lines
        if len(line.strip()) > 15
    }
    if not wanted:
        return
    patterns = [part for line in sorted(wanted) for part in ("-e", line.decode())]
    done = repository.git(
        *("grep", "-F", "--count", "-z", "-I", *patterns, tip), check=False
    )
    counts = [entry.rpartition("\0") for entry in done.text.split("\n") if entry]
    best = sorted(((int(n), path) for path, _, n in counts), reverse=True)[:3]
    for count, path in best:
        name = path.partition(":")[2]
        yield f"  its lines stand in {name} ({count} of {len(wanted)})"
