"""One patch, carried by a three-way merge, with the text apply as a second opinion.

The merge knows what upstream did between the two releases, the text apply only what
the lines look like. Where both can place a patch they must agree; where they do not,
the functions around the changed lines decide.
"""

import tempfile
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.carry import evidence, misplaced, resolutions
from tools.carry.explain import explain
from tools.carry.landing import Carried, Landing
from tools.carry.unresolved import PLACE
from tools.tree.hunk import Hunk, check_place
from tools.tree.patch import Patch
from tools.tree.placed import PlacedPatch
from tools.tree.threeway import Conflict, Merged, three_way


def carry(repository: Repository, placed: PlacedPatch, tip: str) -> Carried:
    """Carry a patch to another tree.

    Args:
        repository: Where all objects are.
        placed: The patch, as the old release has it.
        tip: The new release with the patches before this one, as a tree.

    Returns:
        What became of it; nothing but objects is written.
    """
    patch, before, after = placed.patch, placed.before, placed.after
    merged = three_way(repository, before, tip, after)
    hunks = list(patch.hunks())
    if merged.conflicts:
        return _stopped(repository, patch, hunks, before, tip, merged)
    if merged.tree == tip:
        details = evidence.of_all(repository, hunks, tip)
        return Carried(patch.name, Landing.UPSTREAM, tip, details)
    renames = _renames(repository, before, after, tip, merged.tree)
    sides = (before, after), (tip, merged.tree)
    if doubts := misplaced.wrong_scopes(repository, *sides, renames):
        found = tuple(Conflict(path, PLACE, {}) for path, _ in doubts)
        told = tuple(text for _, text in doubts)
        return Carried(patch.name, Landing.MISPLACED, merged.tree, told, found)
    details = evidence.of_some(repository, hunks, tip)
    if renames:
        told = tuple(f"{old} is now {new}" for old, new in sorted(renames.items()))
        return Carried(patch.name, Landing.RENAMED, merged.tree, told + details)
    text = _text_apply(repository, patch, tip)
    if text == merged.tree:
        exact = all(_stands(repository, patch, hunk, tip) for hunk in hunks)
        landing = Landing.CLEAN if exact else Landing.MOVED
        return Carried(patch.name, landing, merged.tree, details)
    if text:
        details += misplaced.text_alone(repository, tip, text, merged.tree)
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
    if evidence.has_all(repository, hunks, tip, merged):
        details = evidence.of_all(repository, hunks, tip)
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
        check_place(patch.name, hunk, evidence.file_in(repository, tip, hunk.path))
    except ToolError:
        return False
    return True


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
