"""One patch, carried by a three-way merge, with the text apply as a second opinion.

The merge knows what upstream did between the two releases, the text apply only what
the lines look like. Where both can place a patch they must agree; where they do not,
the functions around the changed lines decide.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.carry import resolutions
from tools.carry.landing import Carried, Landing
from tools.carry.place import changes, distance, scopes_of_change
from tools.carry.unresolved import PLACE
from tools.tree.hunk import Hunk, check_place, places, split_lines
from tools.tree.patch import Patch
from tools.tree.threeway import Conflict, Merged, three_way

_NEAR = 3  # lines between a patch's change and upstream's that may be its cause
_SHOWN = 12


@dataclass(frozen=True)
class Step:
    """A patch and the commit that holds it in the old tree.

    Args:
        patch: The patch.
        commit: Its commit; the parent is the state that it was made for.
    """

    patch: Patch
    commit: str


def carry(repository: Repository, step: Step, tip: str) -> Carried:
    """Carry a patch to another tree.

    Args:
        repository: Where all objects are.
        step: The patch.
        tip: The new release with the patches before this one, as a tree.

    Returns:
        What became of it; nothing but objects is written.
    """
    patch = step.patch
    before = repository.tree_of(f"{step.commit}^")
    after = repository.tree_of(step.commit)
    merged = three_way(repository, before, tip, after)
    hunks = list(patch.hunks())
    if merged.conflicts:
        return _stopped(repository, patch, hunks, before, tip, merged)
    if merged.tree == tip:
        details = _upstream_evidence(repository, hunks, tip)
        return Carried(patch.name, Landing.UPSTREAM, tip, details)
    renames = _renames(repository, before, after, tip, merged.tree)
    doubts = _wrong_scopes(repository, (before, after), (tip, merged.tree), renames)
    if doubts:
        found = tuple(Conflict(path, PLACE, {}) for path, _ in doubts)
        told = tuple(text for _, text in doubts)
        return Carried(patch.name, Landing.MISPLACED, merged.tree, told, found)
    details = _partly_upstream(repository, hunks, tip)
    if renames:
        told = tuple(f"{old} is now {new}" for old, new in sorted(renames.items()))
        return Carried(patch.name, Landing.RENAMED, merged.tree, told + details)
    text = _text_apply(repository, patch, tip)
    if text == merged.tree:
        exact = all(_stands(repository, patch, hunk, tip) for hunk in hunks)
        landing = Landing.CLEAN if exact else Landing.MOVED
        return Carried(patch.name, landing, merged.tree, details)
    if text:
        details += _misplaced_text(repository, tip, text, merged.tree)
    return Carried(patch.name, Landing.MERGED, merged.tree, details)


def _stopped(
    repository: Repository,
    patch: Patch,
    hunks: list[Hunk],
    before: str,
    tip: str,
    merged: Merged,
) -> Carried:
    """Return a patch that conflicts: in upstream all the same, or for the user."""
    if _all_upstream(repository, hunks, tip, merged):
        details = _upstream_evidence(repository, hunks, tip)
        return Carried(patch.name, Landing.UPSTREAM, tip, details)
    deleted = [
        c
        for c in merged.conflicts
        if "delete" in c.kind and "upstream" not in c.versions
    ]
    details = tuple(
        line
        for conflict in merged.conflicts
        for line in explain(repository, conflict, hunks, before, tip)
    )
    landing = Landing.DELETED if deleted else Landing.CONFLICT
    return Carried(patch.name, landing, merged.tree, details, merged.conflicts)


def _all_upstream(
    repository: Repository, hunks: list[Hunk], tip: str, merged: Merged
) -> bool:
    """Whether upstream has all that a conflicting patch does.

    Hunks show that for text alone: not for new files, modes and pictures.
    """
    paths = {hunk.path for hunk in hunks}
    return (
        bool(hunks)
        and repository.paths_between(tip, merged.tree) <= paths
        and all(c.is_text and not c.modes_clash for c in merged.conflicts)
        and all(_is_upstream(repository, hunk, tip) for hunk in hunks)
    )


def solve(
    repository: Repository, found: Carried, stored: dict[str, resolutions.Resolution]
) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """Solve a stopped patch by stored resolutions.

    Returns:
        The tree, and for each resolution the file that it solved and its own file;
        None if they do not solve all of it.
    """
    if found.landing is not Landing.CONFLICT:
        return None
    entries, used = [], []
    for conflict in found.conflicts:
        entry = repository.entry(found.tree, conflict.path)
        if not entry or conflict.modes_clash or conflict.name != conflict.path:
            return None
        content = repository.content(entry.blob)
        solved = resolutions.solve(content, stored)
        if solved is None or resolutions.has_marks(solved):
            return None
        entries.append(f"{entry.mode} {repository.store(solved)}\t{conflict.path}\0")
        used += [
            (conflict.path, f"{clash.id}.txt")
            for clash in resolutions.split(content)[1]
        ]
    tree = repository.tree_with_entries(found.tree, "".join(entries).encode())
    return tree, tuple(used)


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
    near = [
        change
        for change in found
        if any(distance(change.old, span) <= _NEAR for span in ours)
    ]
    scopes = scopes_of_change(repository, base, upstream, near) or set()
    where = ", ".join(sorted(filter(None, scopes)))
    yield (
        f"{conflict.path}: {conflict.what}; upstream changed {len(found)} places, "
        f"{len(near)} of them at this patch's lines"
        + (f", in {where}" if where else "")
    )
    lines = [
        line
        for change in near
        for line in (f"@@ line {change.new.start} @@", *change.text)
    ]
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


def _text_apply(repository: Repository, patch: Patch, tip: str) -> str | None:
    """Return the tree that git's text apply gives; None if it refuses."""
    with tempfile.TemporaryDirectory(dir=repository.git_dir) as folder:
        index = Path(folder) / "index"
        repository.git("read-tree", tip, index=index)
        done = repository.git(
            *("apply", "--cached", "--whitespace=nowarn", "-"),
            stdin=patch.diff,
            index=index,
            check=False,
        )
        if done.status != 0:
            return None
        return repository.git("write-tree", index=index).text


def _stands(repository: Repository, patch: Patch, hunk: Hunk, tip: str) -> bool:
    try:
        check_place(patch.name, hunk, _content(repository, tip, hunk.path))
    except ToolError:
        return False
    return True


def _content(repository: Repository, tree: str, path: str) -> bytes | None:
    done = repository.git("cat-file", "blob", f"{tree}:{path}", check=False)
    return done.stdout if done.status == 0 else None


def _renames(
    repository: Repository, before: str, after: str, tip: str, merged: str
) -> dict[str, str]:
    """Return the files of the patch that the merge found under another name."""
    meant = repository.paths_between(before, after)
    done = repository.paths_between(tip, merged)
    lost, found = meant - done, done - meant
    if not lost or not found:
        return {}
    listed = repository.git(
        *("diff-tree", "-r", "-z", "--find-renames=30%", "--diff-filter=R"),
        *("--name-status", before, tip),
    ).text.split("\0")
    pairs = zip(listed[1::3], listed[2::3], strict=False)
    return {old: new for old, new in pairs if old in lost and new in found}


def _wrong_scopes(
    repository: Repository,
    old: tuple[str, str],
    new: tuple[str, str],
    renames: dict[str, str],
) -> list[tuple[str, str]]:
    """Return the Python files in which a patch would change other functions.

    Args:
        repository: Where the trees are.
        old: The trees before and after the patch, on the old release.
        new: Those on the new one.
        renames: New names of files.
    """
    doubts = []
    for path in sorted(repository.paths_between(*old)):
        target = renames.get(path, path)
        if not path.endswith(".py"):
            continue
        blobs = [
            repository.resolve(f"{tree}:{name}")
            for trees, name in ((old, path), (new, target))
            for tree in trees
        ]
        if None in blobs or blobs[2] == blobs[3]:
            continue
        first, second, third, fourth = map(str, blobs)
        meant = scopes_of_change(repository, first, second)
        landed = scopes_of_change(repository, third, fourth)
        if meant is None or landed is None:
            continue
        if strangers := landed - meant:
            doubts.append(
                (
                    target,
                    f"{target}: it was made for {_named(meant)} and would now change "
                    f"{_named(strangers)}",
                )
            )
    return doubts


def _named(scopes: set[str]) -> str:
    return ", ".join(sorted(scope or "the module" for scope in scopes))


def _misplaced_text(
    repository: Repository, tip: str, text: str, merged: str
) -> tuple[str, ...]:
    """Say where the text apply would have gone wrong without an error."""
    details = []
    for path in sorted(repository.paths_between(text, merged)):
        lines, scopes = [], []
        for tree in (text, merged):
            sides = [repository.resolve(f"{side}:{path}") for side in (tip, tree)]
            if None in sides:
                continue
            old, new = map(str, sides)
            found = changes(repository, old, new)
            lines.append("/".join(str(change.new.start) for change in found))
            inside = scopes_of_change(repository, old, new, found) or set()
            scopes.append(f" ({_named(inside)})" if path.endswith(".py") else "")
        if len(lines) == 2:
            details.append(
                f"{path}: as text it would have landed at line {lines[0]}{scopes[0]} "
                f"without an error; the merge puts it at line {lines[1]}{scopes[1]}"
            )
    return tuple(details)


def _is_upstream(repository: Repository, hunk: Hunk, tip: str) -> bool:
    """Whether upstream has a hunk: its lines stand in the file, the old ones do not.

    The added lines need their context on one side only: upstream may have gone on
    from there.
    """
    content = _content(repository, tip, hunk.path)
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


def _upstream_evidence(
    repository: Repository, hunks: list[Hunk], tip: str
) -> tuple[str, ...]:
    """Name the upstream lines that make each hunk needless."""
    details = []
    for hunk in hunks:
        content = _content(repository, tip, hunk.path)
        if content is None:
            details.append(f"{hunk.path}: upstream removed the file, as the patch does")
            continue
        lines = split_lines(content)
        shown = (
            (at[0], len(part))
            for part in _parts(hunk)
            if len(at := places(lines, part)) == 1
        )
        if found := next(shown, None):
            last = found[0] + found[1] - 1
            text = f"{hunk.path}:{found[0]}-{last} are the lines that it makes"
        else:
            first = [line.strip() for line in hunk.added if line.strip()][:1]
            at = [n for n, line in enumerate(lines, 1) if [line.strip()] == first]
            text = f"{hunk.path}: upstream has what {hunk.header} does" + (
                f", at line {at[0]}" if at else ""
            )
        details.append(text)
        details += [_show("+", line) for line in hunk.added[:4]]
        details += [
            f"{_show('-', line)}  (gone there too)" for line in hunk.removed[:4]
        ]
    return tuple(details)


def _show(sign: str, line: bytes) -> str:
    return f"  {sign} {line.decode('utf-8', 'replace').strip()}"


def _partly_upstream(
    repository: Repository, hunks: list[Hunk], tip: str
) -> tuple[str, ...]:
    return tuple(
        f"{hunk.path}, hunk {hunk.header}: upstream has this part already"
        for hunk in hunks
        if _is_upstream(repository, hunk, tip)
    )
