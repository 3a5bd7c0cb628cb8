"""The folder of patches: the files that hold a series, and their names."""

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.tree.patch import Patch
from tools.tree.series import listed, text_with


def files_of(folder: Path, patches: Sequence[Patch]) -> dict[str, bytes]:
    """Return the files that hold a series, by name, `series` among them.

    A present file whose patch differs only cosmetically stays as it is, and so do
    the comments in `series`.

    Args:
        folder: The patch folder as it is.
        patches: The series.

    Raises:
        ToolError: Two patches have one name.
    """
    files = {patch.name: _text_of(folder, patch) for patch in patches}
    if len(files) != len(patches):
        raise ToolError(
            Outcome.BAD_SERIES,
            "two commits have the same subject and place",
            ("Reword one of them",),
        )
    series = folder / "series"
    text = series.read_text("utf-8", "replace") if series.exists() else ""
    if listed(text) != list(files):
        text = text_with(text, list(files))
    return files | {"series": text.encode()}


def file_digests(folder: Path) -> dict[str, str]:
    """Return a digest of each patch and of `series`, by name."""
    paths = sorted((*folder.glob("*.patch"), *folder.glob("series")))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _text_of(folder: Path, patch: Patch) -> bytes:
    new = patch.to_bytes()
    path = folder / patch.name
    if path.is_file():
        old = path.read_bytes()
        head = len(patch.header.render().encode())
        if old[:head] == new[:head] and patch.differs_cosmetically(
            replace(patch, diff=old[head:])
        ):
            return old
    return new


def names_by_subject(folder: Path) -> dict[str, list[str]]:
    """Return the present names in order, but of files that cannot be read."""
    series = folder / "series"
    order = listed(series.read_text("utf-8", "replace")) if series.is_file() else []
    present = sorted(path.name for path in folder.glob("*.patch"))
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys([*(n for n in order if n in present), *present]):
        with suppress(ToolError):
            patch = Patch.parse(name, (folder / name).read_bytes())
            names.setdefault(patch.fields["Subject"], []).append(name)
    return names


def slug(subject: str) -> str:
    """Return the words of a subject as they are in a file name."""
    words = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")
    return words[:48].strip("-") or "patch"
