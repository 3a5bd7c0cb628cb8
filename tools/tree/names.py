"""Names of added files: each must be one that every file system can hold."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from tools.tree.finding import Finding

_RESERVED = {
    *("con", "prn", "aux", "nul"),
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)),
}
_UNPORTABLE = re.compile(r'[<>:"|?*\\\x00-\x1f]')
_LONGEST = 200  # of a path in the tree: Windows allows 260 with the folder above it


def check(owners: Mapping[str, str], upstream: Iterable[str]) -> Iterator[Finding]:
    """Find added files whose names not every file system can hold.

    Args:
        owners: By path in the tree, the patch or overlay that adds it.
        upstream: The paths that the release has.
    """
    # Lower case → the names that have it, folders too.
    spelled: dict[str, set[str]] = {}
    for path in (*upstream, *owners):
        for part in _with_folders(path):
            spelled.setdefault(part.lower(), set()).add(part)
    for path, owner in owners.items():
        if why := _unportable(path):
            yield Finding(owner, "name", f"{path} {why}")
        for part in _with_folders(path):
            if others := spelled[part.lower()] - {part}:
                clash = f"{part} differs only in case from {min(others)}"
                yield Finding(owner, "name", clash)


def _with_folders(path: str) -> tuple[str, ...]:
    return (path, *map(str, PurePosixPath(path).parents))


def _unportable(path: str) -> str:
    """Return why a path cannot stand on every file system; "" if it can.

    >>> _unportable("vllm/aux.py"), _unportable("vllm/auxiliary.py")
    ('has the name aux, which Windows reserves', '')
    """
    for part in path.split("/"):
        stem = part.split(".")[0]
        if stem.lower() in _RESERVED:
            return f"has the name {stem}, which Windows reserves"
        if _UNPORTABLE.search(part) or part.endswith((" ", ".")):
            return "has a character that Windows does not allow there"
    return f"is longer than {_LONGEST}" if len(path) > _LONGEST else ""
