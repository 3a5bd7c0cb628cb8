"""Upstream's releases that this project has looked at, each with its hashes."""

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import requests

from tools.base import atomic, console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source.fetch import Sdist
from tools.source.index import IndexConfig, offline
from tools.source.pin import Artifact, Pin
from tools.tree.compose import import_base
from tools.tree.tree import Tree

_PROJECT = "vllm"
_VERSION = re.compile(r"\d+(\.\d+)+((a|b|rc|\.post)\d+)?")
_HASH = re.compile(r"[0-9a-f]{64}")
_TREE = re.compile(r"[0-9a-f]{40}")
_COMMIT = re.compile(r"^__commit_id__ = .*'g?([0-9a-f]{7,40})'", re.MULTILINE)


@dataclass(frozen=True)
class Releases:
    """The known releases, as `upstream/releases.toml` holds them.

    Args:
        path: The file.
        pins: Each release, by version; without its patched tree.
    """

    path: Path
    pins: dict[str, Pin]

    @classmethod
    def read(cls, path: Path) -> "Releases":
        """Read the file; a missing one knows no release.

        Raises:
            ToolError: It is malformed.
        """
        try:
            data = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls(path, {})
        except (OSError, ValueError) as error:
            raise _bad(path, str(error)) from error
        return cls(path, {name: _pin(path, name, data[name]) for name in data})

    def text_with(self, pin: Pin) -> bytes:
        """Return the file's content with one more release."""
        old = self.path.read_text("utf-8") if self.path.is_file() else ""
        if pin.version in self.pins:
            return old.encode()
        entry = (
            f'["{pin.version}"]\nsha256 = "{pin.sdist.sha256}"\n'
            f'tree = "{pin.tree}"\ncommit = "{pin.commit}"\n'
        ) + "".join(
            f'["{pin.version}".wheel.{device}]\nproject = "{wheel.project}"\n'
            f'filename = "{wheel.filename}"\nsha256 = "{wheel.sha256}"\n'
            for device, wheel in sorted(pin.wheels.items())
        )
        return (old.rstrip("\n") + "\n\n" + entry).lstrip("\n").encode()

    def record(self, pin: Pin) -> None:
        """Add a release to the file."""
        if pin.version not in self.pins:
            atomic.write(self.path, self.text_with(pin))
            console.note(f"{self.path.name} now holds the hash of {pin.version}")


def imported(tree: Tree, known: Releases, version: str, like: Pin | None = None) -> Pin:
    """Return a release whose files are in the tree's object store.

    A release that is not known yet is taken with the hash that the package index
    states for it; whoever calls records it, so that it cannot change any more.

    Args:
        tree: Whose object store to import into.
        known: The known releases.
        version: For example "0.33.0".
        like: A pin whose wheels a new release should have too.

    Raises:
        ToolError: There is no such release, it cannot be had, or it is not what was
            recorded.
    """
    pin = known.pins.get(version) or _look_up(version, like)
    if not pin.tree:
        # What it must be is not known yet: import once to see.
        found = Sdist(tree.project.cache).import_into(
            tree.repository, pin, tree.project.build
        )
        pin = replace(pin, tree=found)
    base = import_base(tree.project, pin, Sdist(tree.project.cache))
    if not pin.commit:
        shown = tree.repository.git(
            "cat-file", "blob", f"{base}:vllm/_version.py", check=False
        )
        match = _COMMIT.search(shown.text)
        pin = replace(pin, commit=match[1] if match else "unknown")
    return pin


def sdist_of(version: str, sha256: str) -> Artifact:
    """Return the artifact of a release's sdist."""
    return Artifact(_PROJECT, f"{_PROJECT}-{version}.tar.gz", sha256)


def _look_up(version: str, like: Pin | None) -> Pin:
    if not _VERSION.fullmatch(version):
        raise ToolError(
            Outcome.USAGE,
            f"{version!r} is no version of a release",
            ("Name a release as the package index does, for example 0.33.0",),
        )
    filename = sdist_of(version, "").filename
    index = IndexConfig.from_pip()
    try:
        digest = index.digest(_PROJECT, filename)
        wheels = _wheels(index, version, like) if like else {}
    except (requests.RequestException, ValueError) as error:
        mend = "or add the release's hash to upstream/releases.toml"
        raise offline(f"the hash of {filename}", error, mend) from error
    if not _HASH.fullmatch(digest):
        raise ToolError(
            Outcome.OFFLINE,
            f"no configured package index has {filename} with its sha256",
            (f"Check the version: pip index versions {_PROJECT}",),
        )
    console.note(f"{filename} is new here; the index states sha256 {digest}")
    return Pin(version, "", sdist_of(version, digest), "", "", wheels)


def _wheels(index: IndexConfig, version: str, like: Pin) -> dict[str, Artifact]:
    """Return the release's wheels, of those devices for which the index has one."""
    wheels = {}
    for device, wheel in like.wheels.items():
        name = wheel.filename.replace(f"-{like.version}-", f"-{version}-")
        if digest := index.digest(wheel.project, name):
            wheels[device] = replace(wheel, filename=name, sha256=digest)
        else:
            console.note(f"no index has {name}: the new pin has no {device} wheel")
    return wheels


def _pin(path: Path, version: str, table: object) -> Pin:
    if not isinstance(table, dict):
        raise _bad(path, f"{version} is not a table")
    fields = {key: table.get(key) for key in ("sha256", "tree", "commit")}
    sha256, tree, commit = (str(value or "") for value in fields.values())
    if not _HASH.fullmatch(sha256) or not _TREE.fullmatch(tree):
        raise _bad(path, f"{version} lacks a whole sha256 or tree")
    wheels = table.get("wheel", {})
    try:
        named = {device: Artifact(**wheel) for device, wheel in wheels.items()}
    except (TypeError, AttributeError) as error:
        raise _bad(path, f"a wheel of {version} is malformed") from error
    return Pin(version, commit, sdist_of(version, sha256), tree, "", named)


def _bad(path: Path, why: str) -> ToolError:
    return ToolError(Outcome.BAD_PIN, f"{path.name}: {why}", (f"Mend {path}",))
