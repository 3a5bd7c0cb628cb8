"""The package index that pip is configured with."""

import ast
import re
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import requests
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    NoSuchProjectError,
    PyPISimple,
)
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.process import run

_CREDENTIALS = re.compile(r"//[^/@\s]+@")
# An index that is there answers a connection at once; its answer may take a while.
_CONNECT_S = 5.0
_TIMEOUT_S = (_CONNECT_S, 60.0)
_BUSY = (429, 500, 502, 503, 504)

# Sections of `pip config list`, weakest first.
_SECTIONS = ("global", "install", "download", ":env:")


@dataclass(frozen=True)
class IndexConfig:
    """What pip's configuration says about where packages come from.

    Args:
        urls: Simple indexes, the main one first.
        find_links: Local folders with package files.
        certificates: Certificate bundle, or None for the default.
        proxy: Its address, or None for what the environment names.
    """

    urls: tuple[str, ...]
    find_links: tuple[Path, ...]
    certificates: str | None
    proxy: str | None = None

    @classmethod
    def from_pip(cls) -> "IndexConfig":
        """Ask pip, so that its files, variables and their order of strength count."""
        listed = run([sys.executable, "-m", "pip", "config", "list"]).text
        return cls.parse(listed)

    @classmethod
    def parse(cls, listed: str) -> "IndexConfig":
        """Parse the output of `pip config list`.

        >>> IndexConfig.parse("global.index-url='https://a/simple'").urls
        ('https://a/simple',)
        """
        settings: dict[str, str] = {}
        entries = [line.partition("=") for line in listed.splitlines()]
        for section in _SECTIONS:
            for name, _, value in entries:
                if name.startswith(f"{section}."):
                    key = name.removeprefix(f"{section}.")
                    settings[key] = str(ast.literal_eval(value))
        urls = [settings.get("index-url", PYPI_SIMPLE_ENDPOINT)]
        urls += settings.get("extra-index-url", "").split()
        if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
            urls = []
        links = settings.get("find-links", "").split()
        return cls(
            # A file: index is a folder of folders that only pip itself can read.
            tuple(url for url in urls if urlsplit(url).scheme in ("http", "https")),
            tuple(Path(link) for link in links if Path(link).is_dir()),
            settings.get("cert"),
            settings.get("proxy"),
        )

    def client(self, url: str) -> PyPISimple:
        """Return a client of one index, with pip's certificates and proxy."""
        # Indexes answer 5xx for moments; who cannot be reached stays out of reach.
        retry = Retry(total=4, connect=0, backoff_factor=0.5, status_forcelist=_BUSY)
        session = self._session()
        session.mount("https://", HTTPAdapter(max_retries=retry))
        return PyPISimple(url, session=session)

    def unreachable(self) -> str:
        """Return why no index answers; "" if one does, or none is configured."""
        reason = ""
        for url in self.urls:
            try:
                with self._session() as session:
                    session.head(url, timeout=_TIMEOUT_S)
            except requests.exceptions.SSLError:
                return ""  # pip may trust it all the same
            except requests.RequestException as error:
                reason = _reason(error)
            else:
                return ""
        return reason

    def download(self, project: str, filename: str, target: Path) -> bool:
        """Get a file from a local folder, or else the first index that has it.

        Which of them serves it does not matter, since the caller checks its hash.

        Returns:
            False if none of them has the file.

        Raises:
            requests.RequestException: An index could not be reached.
        """
        for folder in self.find_links:
            if (folder / filename).is_file():
                shutil.copyfile(folder / filename, target)
                return True
        for url in self.urls:
            with self.client(url) as client:
                for package in files_of(client, project):
                    if package.filename == filename:
                        client.download_package(
                            package,
                            target,
                            verify=False,
                            progress=partial(_DownloadProgress, filename),
                            timeout=_TIMEOUT_S,
                        )
                        return True
        return False

    def digests(self, project: str) -> dict[str, str]:
        """Return the sha256 that the indexes state for each file of a project.

        Where several have a file, the first one counts; "" if it states none.

        Raises:
            requests.RequestException: An index could not be reached.
        """
        found: dict[str, str] = {}
        for url in self.urls:
            with self.client(url) as client:
                for package in files_of(client, project):
                    digest = package.digests.get("sha256", "")
                    found.setdefault(package.filename, digest)
        return found

    def _session(self) -> requests.Session:
        session = requests.Session()
        if self.certificates:
            session.verify = self.certificates
        if self.proxy:
            session.proxies = {"http": self.proxy, "https": self.proxy}
        return session


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


def files_of(client: PyPISimple, project: str) -> list[DistributionPackage]:
    """Return a project's files in one index; none if it lacks the project.

    Raises:
        requests.RequestException: The index could not be reached.
    """
    try:
        return client.get_project_page(project, timeout=_TIMEOUT_S).packages
    except NoSuchProjectError:
        return []


def offline(what: str, error: Exception | str, *mends: str) -> ToolError:
    """Return the error of something that could not be had from the index.

    Args:
        what: What is wanted.
        error: Why the index cannot be reached.
        mends: What helps instead of a network.
    """
    return ToolError(
        Outcome.OFFLINE,
        f"{what} is not in the cache and the package index cannot be reached",
        ("Connect to the network and run the command again", *filter(None, mends)),
        (error if isinstance(error, str) else _reason(error),),
    )


def _reason(error: Exception) -> str:
    return _CREDENTIALS.sub("//", str(error).partition("\n")[0])[:300]
