"""The wheel: a pinned prebuilt wheel under the patched tree and the extension.

Members of the prebuilt wheel are copied as they are compressed there, and all others
are stored, so nothing is compressed here. That takes a second or two, and the
wheel's bytes depend on its inputs alone, not on this machine's zlib.
"""

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from packaging.requirements import InvalidRequirement, Requirement

from tools.base import console
from tools.base.digest import sha256
from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.base.stamp import Stamp
from tools.source.fetch import fetch
from tools.source.pin import Pin

_PACKAGE = "vllm"
_EXTENSION = "vllm/tagma.abi3.so"
VERSION_FILE = "vllm/_version.py"
# The prebuilt members use the stable ABI of CPython 3.8, the extension that of 3.11.
_PYTHON_TAG = "cp311-abi3"
# The symbol versions that manylinux_2_28, the prebuilt wheel's platform, allows.
_ALLOWED_SYMBOLS = {
    b"GLIBC": (2, 28),
    b"GLIBCXX": (3, 4, 24),
    b"CXXABI": (1, 3, 11),
    b"GCC": (8, 0, 0),
}
_SYMBOL = re.compile(rb"\0(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9][0-9.]*)(?=\0)")
_LOCAL_HEADER_SIZE = 30


@dataclass(frozen=True)
class Wheel:
    """A built wheel.

    Args:
        path: The file.
        inputs: What identifies its content.
        made: Whether it was built now; else it was up to date.
    """

    path: Path
    inputs: dict[str, str]
    made: bool


def version(pin: Pin, device: str) -> str:
    """Return the fork's version. vLLM tells its CPU build by the word "cpu" in it."""
    return f"{pin.version}+tagma.{device}"


def build(project: Project, pin: Pin, device: str, extension: Path) -> Wheel:
    """Build the wheel of a device unless it is up to date.

    Args:
        project: The project, with an applied tree that has no edits.
        pin: The pin, which names the prebuilt wheel.
        device: "cpu" or "cuda".
        extension: The compiled extension.

    Raises:
        ToolError: The prebuilt wheel cannot be had or is not what it should be, or a
            requirement of the tree cannot stand in a wheel.
    """
    artifact = pin.wheel(device)
    repository = Repository(project.tree)
    inputs = {
        "version": version(pin, device),
        "prebuilt": artifact.sha256,
        "tree": repository.tree_of("HEAD"),
        "extension": sha256(extension),
        "recipe": sha256(Path(__file__)),
    }
    folder = project.build / "wheel" / device
    stamp = Stamp(folder / "wheel.json")
    if stamp.fits(inputs) and (found := list(folder.glob("*.whl"))):
        return Wheel(found[0], inputs, False)
    prebuilt = fetch(artifact, project.cache)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    platform = platform_tag(artifact.filename, extension.read_bytes())
    path = folder / f"{_PACKAGE}-{inputs['version']}-{_PYTHON_TAG}-{platform}.whl"
    partial = path.with_suffix(".partial")
    with _Prebuilt(prebuilt) as base, _Writer(partial, inputs["version"]) as writer:
        members = [
            *_tree_members(repository),
            (_EXTENSION, extension.read_bytes(), 0o755),
            (VERSION_FILE, _version_file(inputs["version"]), 0o644),
        ]
        own = {
            "METADATA": _metadata(project.tree, device, base, inputs["version"]),
            "WHEEL": (
                "Wheel-Version: 1.0\nGenerator: tagma\nRoot-Is-Purelib: false\n"
                f"Tag: {_PYTHON_TAG}-{platform}\n"
            ),
        }
        _assemble(writer, base, members, own)
    os.replace(partial, path)
    stamp.write(inputs)
    return Wheel(path, inputs, True)


def platform_tag(prebuilt: str, extension: bytes) -> str:
    """Return the wheel's platform tag.

    It is the prebuilt wheel's as long as the extension needs no newer libraries;
    a compiler newer than that may make it need them, and then the wheel is for this
    machine only, which "linux" says.

    Args:
        prebuilt: File name of the prebuilt wheel.
        extension: The extension's bytes.
    """
    for library, text in _SYMBOL.findall(extension):
        needed = tuple(int(part) for part in text.strip(b".").split(b"."))
        if needed > _ALLOWED_SYMBOLS[library]:
            return "linux_x86_64"
    return prebuilt.removesuffix(".whl").rpartition("-")[2]


class _Prebuilt:
    """A published wheel, open for copying; its own RECORD is trusted.

    The whole file's hash has been checked, so its members need no second check.
    """

    def __init__(self, path: Path):
        self.name = path.name
        self.zip = zipfile.ZipFile(path)
        self._raw = path.open("rb")
        self.members = {
            info.filename: info for info in self.zip.infolist() if not info.is_dir()
        }
        records = [name for name in self.members if name.endswith(".dist-info/RECORD")]
        if len(records) != 1:
            raise _bad(f"{self.name} has {len(records)} RECORD files instead of one")
        self.info = records[0].removesuffix("RECORD")
        rows = csv.reader(self.zip.read(records[0]).decode().splitlines())
        self.digests = {name: digest for name, digest, _ in rows}

    def __enter__(self) -> "_Prebuilt":
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()
        self.zip.close()

    def text(self, name: str) -> str:
        """Return a text of the dist-info folder."""
        return self.zip.read(self.info + name).decode()

    def compressed(self, member: zipfile.ZipInfo) -> IO[bytes]:
        """Return the open file, at the beginning of a member's compressed bytes."""
        self._raw.seek(member.header_offset)
        header = self._raw.read(_LOCAL_HEADER_SIZE)
        lengths = header[26:28], header[28:30]  # of the name and the extra field
        self._raw.seek(sum(int.from_bytes(part, "little") for part in lengths), 1)
        return self._raw


@dataclass
class _Writer:
    """A wheel being written: fixed times and modes, and a RECORD at the end."""

    path: Path
    version: str
    _rows: list[tuple[str, str, str]] = field(default_factory=list)

    def __enter__(self) -> "_Writer":
        self.zip = zipfile.ZipFile(self.path, "w")
        self.info = f"{_PACKAGE}-{self.version}.dist-info/"
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            name = f"{self.info}RECORD"
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(
                [*self._rows, (name, "", "")]
            )
            self.zip.writestr(_zip_info(name, 0o644), text.getvalue())
        self.zip.close()

    def add(self, name: str, content: bytes, mode: int) -> None:
        """Store a member."""
        self.zip.writestr(_zip_info(name, mode), content)
        self._rows.append((name, _digest(content), str(len(content))))

    def copy(self, name: str, base: _Prebuilt, source: str, mode: int) -> None:
        """Copy a member of the prebuilt wheel as it is compressed there."""
        member = base.members[source]
        info = _zip_info(name, mode)
        info.compress_type = member.compress_type
        info.CRC = member.CRC
        info.compress_size = member.compress_size
        info.file_size = member.file_size
        # zipfile offers no copying of compressed bytes, so this does what its
        # writestr does, less the compression.
        assert self.zip.fp
        info.header_offset = self.zip.fp.tell()
        self.zip.fp.write(info.FileHeader(zip64=False))
        _copy_bytes(base.compressed(member), self.zip.fp, member.compress_size)
        self.zip.start_dir = self.zip.fp.tell()
        self.zip.filelist.append(info)
        self.zip.NameToInfo[name] = info
        self._rows.append((name, base.digests[source], str(member.file_size)))


_Member = tuple[str, bytes, int]


def _assemble(
    writer: _Writer, base: _Prebuilt, members: Iterable[_Member], own: dict[str, str]
) -> None:
    """Write everything: the tree wins where the prebuilt wheel has a file too."""
    ours = {name: (content, mode) for name, content, mode in members}
    theirs = {name for name in base.members if not name.startswith(base.info)}
    texts = sorted(
        name.removeprefix(base.info)
        for name in base.members
        if name.startswith(base.info)
    )
    with console.step("assemble the wheel", len(ours.keys() | theirs)) as step:
        for name in sorted(ours.keys() | theirs):
            if name not in ours:
                executable = base.members[name].external_attr >> 16 & 0o111
                writer.copy(name, base, name, 0o755 if executable else 0o644)
            else:
                content, mode = ours[name]
                if base.digests.get(name) == _digest(content):
                    writer.copy(name, base, name, mode)
                else:
                    writer.add(name, content, mode)
            step.advance(1)
    for name in texts:
        if name in own:
            writer.add(writer.info + name, own[name].encode(), 0o644)
        elif name != "RECORD":
            writer.copy(writer.info + name, base, base.info + name, 0o644)


def _tree_members(repository: Repository) -> Iterator[_Member]:
    """Iterate over the tracked files of the package, which equal the work tree's."""
    listed = repository.git("ls-tree", "-r", "-z", "HEAD", _PACKAGE).text
    for entry in listed.split("\0"):
        if entry:
            attributes, _, name = entry.partition("\t")
            mode = 0o755 if attributes.startswith("100755") else 0o644
            yield name, (repository.path / name).read_bytes(), mode


def _version_file(text: str) -> bytes:
    """Return vllm/_version.py, in which setuptools-scm would write the version."""
    release, _, local = text.partition("+")
    parts = (*(int(part) for part in release.split(".")), local)
    return (
        f"__version__ = version = {text!r}\n"
        f"__version_tuple__ = version_tuple = {parts!r}\n"
        "__commit_id__ = commit_id = None\n"
    ).encode()


def _metadata(tree: Path, device: str, base: _Prebuilt, text: str) -> str:
    """Return METADATA: upstream's own from the sdist, with our version.

    The CUDA wheel's requirements stay: they are upstream's, and what the series
    changes concerns the CPU. The CPU's come from the patched requirement files.
    """
    if device == "cpu":
        lines = list(_requirement_lines(tree / "requirements" / "cpu.txt"))
    else:
        lines = [
            line.removeprefix("Requires-Dist: ")
            for line in base.text("METADATA").splitlines()
            if line.startswith("Requires-Dist: ") and "extra ==" not in line
        ]
    required = [f"Requires-Dist: {_requirement(line)}" for line in lines]
    upstream = (tree / "PKG-INFO").read_text("utf-8")
    head, _, description = upstream.partition("\n\n")
    fields = []
    for line in head.splitlines():
        if line.startswith("Requires-Dist: ") and "extra ==" not in line:
            fields += required
            required = []
        else:
            fields.append(f"Version: {text}" if line.startswith("Version: ") else line)
    return "\n".join([*fields, *required]) + "\n\n" + description


def _requirement_lines(path: Path) -> Iterator[str]:
    """Iterate over the lines of a requirement file and those that it includes."""
    for line in path.read_text("utf-8").splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if text.startswith("-r "):
            yield from _requirement_lines(path.parent / text.split()[1])
        elif text and not text.startswith("--"):
            yield text


def _requirement(line: str) -> Requirement:
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise _bad(f"{line!r} is no requirement: {error}") from error
    if requirement.url:
        raise _bad(
            f"a wheel cannot require an address: {line}",
        )
    return requirement


def _zip_info(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)  # its time is zip's earliest
    info.external_attr = (0o100000 | mode) << 16
    return info


def _digest(content: bytes) -> str:
    """Return a hash as RECORD writes it."""
    raw = hashlib.sha256(content).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _copy_bytes(source: IO[bytes], target: IO[bytes], size: int) -> None:
    while size:
        chunk = source.read(min(size, 1 << 22))
        if not chunk:
            raise _bad(f"{source.name} ends in the middle of a member")
        target.write(chunk)
        size -= len(chunk)


def _bad(message: str) -> ToolError:
    return ToolError(
        Outcome.BAD_WHEEL, message, ("Mend upstream/pin.toml or patches/, then apply",)
    )
