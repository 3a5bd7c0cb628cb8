"""What identifies the content of files."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


def sha256(path: Path) -> str:
    """Return a file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_all(paths: Iterable[Path]) -> str:
    """Return one sha256 for the contents of several files, in their order."""
    total = hashlib.sha256()
    for path in paths:
        total.update(bytes.fromhex(sha256(path)))
    return total.hexdigest()
