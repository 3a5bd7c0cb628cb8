"""What our wheel says of itself: version, tags and METADATA."""

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from tools.compile.prebuilt import Prebuilt, bad_wheel


def version_file(text: str) -> bytes:
    """Return vllm/_version.py, in which setuptools-scm would write the version."""
    release, _, local = text.partition("+")
    fields = re.findall(r"[a-z]+\d+|\d+", release)  # of 1.0rc1, 1.0.post1 too
    parts = (*(int(f) if f.isdecimal() else f for f in fields), local)
    return (
        f"__version__ = version = {text!r}\n"
        f"__version_tuple__ = version_tuple = {parts!r}\n"
        "__commit_id__ = commit_id = None\n"
    ).encode()


def tags(tag: str) -> str:
    """Return the file WHEEL."""
    return f"Wheel-Version: 1.0\nGenerator: tagma\nRoot-Is-Purelib: false\nTag: {tag}\n"


def metadata(tree: Path, device: str, base: Prebuilt, text: str) -> str:
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
    head, _, description = _package_info(tree, base).partition("\n\n")
    fields = []
    for line in head.splitlines():
        if line.startswith("Requires-Dist: ") and "extra ==" not in line:
            fields += required
            required = []
        else:
            fields.append(f"Version: {text}" if line.startswith("Version: ") else line)
    return "\n".join([*fields, *required]) + "\n\n" + description


def _package_info(tree: Path, base: Prebuilt) -> str:
    """Return what setuptools wrote into the sdist; a commit has only the wheel's."""
    path = tree / "PKG-INFO"
    if path.is_file():
        return path.read_text("utf-8")
    # The CPU's wheel has a name of its own.
    return re.sub("^Name: .*", "Name: vllm", base.text("METADATA"), flags=re.MULTILINE)


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
        raise bad_wheel(f"{line!r} is no requirement: {error}") from error
    if requirement.url:
        raise bad_wheel(f"a wheel cannot require an address: {line}")
    return requirement
