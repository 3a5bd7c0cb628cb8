"""Patches that would change another function than the one they were made for."""

from tools.base.git import Repository
from tools.carry.place import changes, scopes_of_change


def wrong_scopes(
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


def text_alone(
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


def _named(scopes: set[str]) -> str:
    return ", ".join(sorted(scope or "the module" for scope in scopes))
