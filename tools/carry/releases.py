"""Upstream's releases that this project has looked at, each with its hashes."""

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from tools.base import atomic, console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source.pin import Artifact, Pin

PROJECT = "vllm"
_HASH = re.compile(r"[0-9a-f]{64}")
_OBJECT_ID = re.compile(r"[0-9a-f]{40}")
_ENTRY = re.compile(r'^\["([^"]+)"\]\n', re.MULTILINE)


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
            return cls(path, _parse(path, path.read_text("utf-8")))
        except FileNotFoundError:
            return cls(path, {})
        except (OSError, ValueError) as error:
            raise _bad(path, str(error)) from error

    def including(self, pinned: Pin) -> "Releases":
        """Return them with the pinned one, which the file may know less about."""
        known = self.pins.get(pinned.version)
        wheels = {**(known.wheels if known else {}), **pinned.wheels}
        pin = replace(pinned, patched_tree="", wheels=wheels)
        return replace(self, pins=self.pins | {pin.version: pin})

    @property
    def wheels(self) -> dict[str, Artifact]:
        """A wheel for each device that a known release has one for, the last's."""
        return {d: w for pin in self.pins.values() for d, w in pin.wheels.items()}

    def text_with(self, *pins: Pin) -> bytes:
        """Return the file's content with releases, whose old entries give way."""
        text = self.path.read_text("utf-8") if self.path.is_file() else ""
        for pin in pins:
            known = _parse(self.path, text).get(pin.version)
            if known != replace(pin, patched_tree=""):
                text = _with_entry(text, pin)
        return text.encode()

    def record(self, pin: Pin) -> None:
        """Add a release to the file, or what is new about one."""
        new = self.text_with(pin)
        if not self.path.is_file() or new != self.path.read_bytes():
            atomic.write(self.path, new)
            console.note(f"{self.path.name} now holds the hashes of {pin.version}")


def sdist_of(version: str, sha256: str) -> Artifact:
    """Return the artifact of a release's sdist."""
    return Artifact(PROJECT, f"{PROJECT}-{version}.tar.gz", sha256)


def _with_entry(text: str, pin: Pin) -> str:
    """Return the file's text with an entry added, or replaced where it stands."""
    found = list(_ENTRY.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    for match, end in zip(found, ends, strict=False):
        if match[1] == pin.version:
            gap = "\n" if end < len(text) else ""
            return text[: match.start()] + _entry(pin) + gap + text[end:]
    return (text.rstrip("\n") + "\n\n" + _entry(pin)).lstrip("\n")


def _entry(pin: Pin) -> str:
    source = f'sha256 = "{pin.sdist.sha256}"' if pin.sdist else f'git = "{pin.git}"'
    return (
        f'["{pin.version}"]\n{source}\ntree = "{pin.tree}"\ncommit = "{pin.commit}"\n'
    ) + "".join(
        f'\n["{pin.version}".wheel.{device}]\nproject = "{wheel.project}"\n'
        f'filename = "{wheel.filename}"\nsha256 = "{wheel.sha256}"\n'
        for device, wheel in sorted(pin.wheels.items())
    )


def _parse(path: Path, text: str) -> dict[str, Pin]:
    data = tomllib.loads(text)
    return {name: _pin(path, name, table) for name, table in data.items()}


def _pin(path: Path, version: str, table: object) -> Pin:
    if not isinstance(table, dict):
        raise _bad(path, f"{version} is not a table")
    fields = {key: table.get(key) for key in ("sha256", "git", "tree", "commit")}
    sha256, git, tree, commit = (str(value or "") for value in fields.values())
    source = _OBJECT_ID.fullmatch(commit) if git else _HASH.fullmatch(sha256)
    if not source or not _OBJECT_ID.fullmatch(tree):
        lacking = "commit" if git else "sha256"
        raise _bad(path, f"{version} lacks a whole {lacking} or tree")
    wheels = table.get("wheel", {})
    try:
        named = {device: Artifact(**wheel) for device, wheel in wheels.items()}
    except (TypeError, AttributeError) as error:
        raise _bad(path, f"a wheel of {version} is malformed") from error
    sdist = None if git else sdist_of(version, sha256)
    return Pin(version, commit, sdist, tree, "", named, git)


def _bad(path: Path, why: str) -> ToolError:
    return ToolError(Outcome.BAD_PIN, f"{path.name}: {why}", (f"Mend {path}",))
