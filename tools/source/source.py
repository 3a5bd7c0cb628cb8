"""Where the pinned release comes from; every source must give the same tree."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.source import archive, download
from tools.source.pin import Pin

_IMPORT = "refs/tagma/import"  # and the archive's hash: imports run side by side


class Source(Protocol):
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
    """The pinned sdist.

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
        if self.file:
            download.verify(self.file, pin.sdist)
            sdist = self.file
        else:
            sdist = download.fetch(pin.sdist, self.cache, "--source")
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
            "fetch", "--quiet", "--depth=1", self.url, revision, check=False
        )
        if fetched.status != 0:
            raise ToolError(
                Outcome.OFFLINE,
                f"{revision} cannot be fetched from {self.url}",
                ("Check the address, or use the sdist (the default source)",),
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
