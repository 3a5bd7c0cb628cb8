"""Files of the package index, checked by hash and kept in the user's cache."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import requests

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source.index import IndexConfig, offline
from tools.source.pin import Artifact

_CHUNK = 1 << 20


def sha256(path: Path) -> str:
    """Return a file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(path: Path, artifact: Artifact) -> None:
    """Check a file against its pin.

    Raises:
        ToolError: The hash differs; both hashes are in the details.
    """
    found = sha256(path)
    if found != artifact.sha256:
        raise ToolError(
            Outcome.WRONG_HASH,
            f"{path.name} is not the pinned {artifact.filename}",
            (
                "Fetch it again: the download may have been cut short",
                "Do not change the pin unless upstream says that it replaced the file",
            ),
            (
                f"expected sha256 {artifact.sha256}",
                f"found    sha256 {found} ({path.stat().st_size} bytes)",
            ),
        )


def fetch(artifact: Artifact, cache: Path, option: str = "") -> Path:
    """Return the artifact's file in the cache, downloading it if need be.

    A cached file is used without touching the network. A download is kept only
    once its hash is right.

    Args:
        artifact: What to fetch.
        cache: The cache's folder.
        option: Command-line option that names a local file instead, for the error.

    Raises:
        ToolError: No network, no such file, or a wrong hash.
    """
    folder = cache / "files" / artifact.sha256
    kept = folder / artifact.filename
    if kept.is_file():
        if sha256(kept) == artifact.sha256:
            return kept
        console.note(f"{artifact.filename} in the cache is damaged; fetching it again")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        partial = Path(scratch) / artifact.filename
        _download(artifact, partial, option)
        verify(partial, artifact)
        os.replace(partial, kept)
    return kept


def _download(artifact: Artifact, target: Path, option: str) -> None:
    config = IndexConfig.from_pip()
    for folder in config.find_links:
        if (folder / artifact.filename).is_file():
            shutil.copyfile(folder / artifact.filename, target)
            return
    mend = f"or name a local copy: {option} {artifact.filename}" if option else ""
    try:
        found = config.download(
            artifact.project,
            artifact.filename,
            target,
            lambda size: _DownloadProgress(artifact.filename, size),
        )
    except requests.exceptions.ChunkedEncodingError as error:
        raise ToolError(
            Outcome.OFFLINE,
            f"the download of {artifact.filename} was cut short",
            ("Run the command again",),
            (str(error)[:300],),
        ) from error
    # ValueError: an answer that is no index page, or an address that is none.
    except (requests.RequestException, OSError, ValueError) as error:
        raise offline(artifact.filename, error, mend) from error
    if not found:
        raise ToolError(
            Outcome.OFFLINE,
            f"no configured package index has {artifact.filename}",
            (f"Configure an index that mirrors {artifact.project}", mend),
        )


class _DownloadProgress:
    """pypi-simple's progress protocol on top of `console.step`."""

    def __init__(self, name: str, size: int | None):
        self._step = console.step(f"download {name}", size, "bytes")

    def __enter__(self) -> Self:
        self._shown = self._step.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._step.__exit__(kind, error, trace)

    def update(self, size: int) -> None:
        self._shown.advance(size)
