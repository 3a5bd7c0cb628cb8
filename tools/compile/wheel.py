"""The wheel: a pinned prebuilt wheel under the patched tree and the extension.

Members of the prebuilt wheel are copied as they are compressed there, and all others
are stored, so nothing is compressed here. That takes a second or two, and the
wheel's bytes depend on its inputs alone, not on this machine's zlib.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.base import atomic, console
from tools.base.digest import sha256, sha256_of_all
from tools.base.git import Repository
from tools.base.project import Project
from tools.base.stamp import Stamp
from tools.compile.prebuilt import Prebuilt
from tools.compile.wheel_metadata import metadata, tags, version_file
from tools.compile.wheel_writer import PACKAGE, WheelWriter, digest
from tools.source.fetch import fetch
from tools.source.pin import Artifact, Pin

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
    inputs = _inputs(project, version(pin, device), artifact, extension)
    folder = project.build / "wheel" / device
    stamp = Stamp(folder / "wheel.json")
    if stamp.fits(inputs) and (found := list(folder.glob("*.whl"))):
        return Wheel(found[0], inputs, False)
    prebuilt = fetch(artifact, project.cache)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tag = f"{_PYTHON_TAG}-{platform_tag(artifact.filename, extension.read_bytes())}"
    path = folder / f"{PACKAGE}-{inputs['version']}-{tag}.whl"
    partial = path.with_suffix(".partial")
    with Prebuilt(prebuilt) as base, WheelWriter(partial, inputs["version"]) as writer:
        own = {
            "METADATA": metadata(project.tree, device, base, inputs["version"]),
            "WHEEL": tags(tag),
        }
        members = _members(project.tree, extension, inputs["version"])
        _assemble(writer, base, members, own)
    atomic.move(partial, path)
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


def _inputs(
    project: Project, text: str, prebuilt: Artifact, extension: Path
) -> dict[str, str]:
    """Return what the wheel's bytes depend on; the recipe is this whole folder."""
    return {
        "version": text,
        "prebuilt": prebuilt.sha256,
        "tree": Repository(project.tree).tree_of("HEAD"),
        "extension": sha256(extension),
        "recipe": sha256_of_all(sorted(Path(__file__).parent.rglob("*.py"))),
    }


_Member = tuple[str, bytes, int]


def _assemble(
    writer: WheelWriter, base: Prebuilt, members: Iterable[_Member], own: dict[str, str]
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
                if base.digests.get(name) == digest(content):
                    writer.copy(name, base, name, mode)
                else:
                    writer.add(name, content, mode)
            step.advance(1)
    for name in texts:
        if name in own:
            writer.add(writer.info + name, own[name].encode(), 0o644)
        elif name != "RECORD":
            writer.copy(writer.info + name, base, base.info + name, 0o644)


def _members(tree: Path, extension: Path, text: str) -> Iterator[_Member]:
    """Iterate over the members of our own.

    They are the tracked files of the package, which equal the work tree's, the
    extension and the version.
    """
    listed = Repository(tree).git("ls-tree", "-r", "-z", "HEAD", PACKAGE).text
    for entry in listed.split("\0"):
        if entry:
            attributes, _, name = entry.partition("\t")
            mode = 0o755 if attributes.startswith("100755") else 0o644
            yield name, (tree / name).read_bytes(), mode
    yield _EXTENSION, extension.read_bytes(), 0o755
    yield VERSION_FILE, version_file(text), 0o644
