"""How the pinned files come here: from cache, index, a local copy, or git."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import requests

from tools.base import atomic, console
from tools.base.digest import sha256
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.source import archive
from tools.source.index import IndexConfig, offline
from tools.source.pin import Artifact, Pin

_IMPORT = "refs/tagma/import"  # and the archive's hash: imports run side by side


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
    make_cache(folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        partial = Path(scratch) / artifact.filename
        _download(artifact, partial, option)
        verify(partial, artifact)
        atomic.move(partial, kept)
    return kept


def make_cache(folder: Path) -> None:
    """Make a folder of the cache.

    Raises:
        ToolError: The cache cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ToolError(
            Outcome.SYSTEM,
            f"the download cache {folder} cannot be written: {error.strerror}",
            ("Choose another folder: TAGMA_CACHE=DIR python -m tools …",),
        ) from error


def _download(artifact: Artifact, target: Path, option: str) -> None:
    mends = ["or set TAGMA_CACHE to the cache of a machine that has it"]
    if option:
        mends.append(f"or name a local copy: {option} {artifact.filename}")
    try:
        index = IndexConfig.from_pip()
        found = index.download(artifact.project, artifact.filename, target)
    except requests.exceptions.ChunkedEncodingError as error:
        raise ToolError(
            Outcome.OFFLINE,
            f"the download of {artifact.filename} was cut short",
            ("Run the command again",),
            (str(error)[:300],),
        ) from error
    # ValueError: an answer that is no index page, or an address that is none.
    except (requests.RequestException, OSError, ValueError) as error:
        raise offline(artifact.filename, error, *mends) from error
    if not found:
        raise ToolError(
            Outcome.OFFLINE,
            f"no configured package index has {artifact.filename}",
            (f"Configure an index that mirrors {artifact.project}", *mends),
        )


class ReleaseSource(Protocol):
    """A way to get the release into the object store."""

    @property
    def name(self) -> str:
        """What to call the source in an error."""

    def import_into(self, repository: Repository, pin: Pin, scratch: Path) -> str:
        """Write the release's files as git objects and return their tree id.

        Raises:
            ToolError: The source cannot be had, or is not what the pin says.
        """


@dataclass(frozen=True)
class Sdist:
    """The pinned sdist; for a pin that has none, the pinned commit.

    Args:
        cache: The user's download cache.
        file: A local copy to use instead of cache and index.
    """

    cache: Path
    file: Path | None = None

    @property
    def name(self) -> str:
        """What to call the source in an error."""
        return str(self.file) if self.file else "the sdist"

    def import_into(self, repository: Repository, pin: Pin, scratch: Path) -> str:
        """Stream the sdist into the object store; nothing is unpacked."""
        if pin.sdist is None:
            if self.file:
                raise _no_sdist(pin, self.file)
            return GitRemote(pin.git).import_into(repository, pin, scratch)
        if self.file:
            verify(self.file, pin.sdist)
            sdist = self.file
        else:
            sdist = fetch(pin.sdist, self.cache, "--source")
        reference = f"{_IMPORT}-{pin.sdist.sha256[:12]}"
        stream = b"".join(archive.fast_import(sdist, reference))
        # One pack without deltas: 7,700 loose objects cost more than the rest.
        options = ("--quiet", "--force", "--depth=0")
        repository.git("fast-import", *options, stdin=stream)
        tree = repository.tree_of(reference)
        repository.git("update-ref", "-d", reference)
        return tree


@dataclass(frozen=True)
class GitRemote:
    """A git repository that has the pinned commit.

    Args:
        url: Its address or path.
        commit: The commit, all 40 digits; "" takes the pin's, if that is whole.
    """

    url: str
    commit: str = ""

    @property
    def name(self) -> str:
        """What to call the source in an error."""
        return self.url

    def import_into(self, repository: Repository, pin: Pin, scratch: Path) -> str:
        """Fetch the commit and return its tree."""
        commit = self.commit or pin.commit
        if len(commit) != 40:
            raise ToolError(
                Outcome.BAD_PIN,
                f"git fetches only whole commit ids, and the pin has {commit!r}",
                (f"Name all 40 digits: --commit {commit}…",),
            )
        tree = repository.tree_of(self.fetch(repository, commit))
        if tree != pin.tree:
            self._explain(repository, pin, tree)
        return tree

    def fetch(self, repository: Repository, revision: str) -> str:
        """Fetch a commit, or what a full reference like refs/tags/v1 names.

        Returns:
            The commit's id.

        Raises:
            ToolError: It cannot be fetched.
        """
        fetched = repository.git(
            "fetch", "--quiet", "--depth=1", "--", self.url, revision, check=False
        )
        if fetched.status != 0:
            short = re.fullmatch(r"[0-9a-f]{7,39}", revision)
            whole = ("Name all 40 digits: git fetches only whole commit ids",)
            raise ToolError(
                Outcome.OFFLINE,
                f"{revision} cannot be fetched from {self.url}",
                (
                    *(whole if short else ()),
                    "Check the address, or use the sdist (the default source)",
                ),
                tuple(fetched.error_text.splitlines()[-5:]),
            )
        return repository.git("rev-parse", "FETCH_HEAD^{commit}").text

    def _explain(self, repository: Repository, pin: Pin, tree: str) -> None:
        """Raise with the paths that differ from the sdist, if that was imported."""
        details = [f"expected tree {pin.tree}", f"found    tree {tree}"]
        base = repository.resolve(f"refs/tagma/base/{pin.tree}") or pin.tree
        done = repository.git(
            "diff-tree", "-r", "--name-status", base, tree, check=False
        )
        lines = done.text.splitlines() if done.status == 0 else []
        details += lines[:20] + (["…"] if len(lines) > 20 else [])
        raise ToolError(
            Outcome.WRONG_TREE,
            f"commit {self.commit or pin.commit} of {self.url} is not the pinned tree",
            ("Use the pinned sdist (the default source)",),
            tuple(details),
        )


def _no_sdist(pin: Pin, file: Path) -> ToolError:
    return ToolError(
        Outcome.USAGE,
        f"{pin.version} is pinned as a commit of {pin.git}, so {file} cannot be it",
        ("Name a repository that has the commit: --git URL",),
    )
