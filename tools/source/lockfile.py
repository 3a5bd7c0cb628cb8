"""Lock files: exact pins, and the hash of every file that may satisfy them."""

import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import requests
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pypi_simple import DistributionPackage

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.source.index import IndexConfig, files_of, offline

PYTHONS = ((3, 11), (3, 12), (3, 13))
# The prebuilt wheels need glibc 2.28, so every pin must have a file for it; files
# for newer systems are allowed beside it, because pip prefers them there.
_OLDEST_GLIBC, _NEWEST_GLIBC = 28, 40

_HASH = re.compile(r"\s--hash=sha256:([0-9a-f]{64})(?=\s|$)")


@dataclass(frozen=True)
class PinnedPackage:
    """One line of an input file: `name==version [; marker] [--hash=sha256:…]`.

    Args:
        requirement: The name, exact version and marker.
        hashes: Files to accept that no index lists.
    """

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The project's normalized name."""
        return canonicalize_name(self.requirement.name)

    def wanted_by(self) -> list[tuple[int, int]]:
        """The supported Python versions for which the marker holds."""
        marker = self.requirement.marker
        return [
            python
            for python in PYTHONS
            if marker is None or marker.evaluate({"python_version": pythons([python])})
        ]


def pythons(versions: Iterable[tuple[int, int]] = PYTHONS) -> str:
    """Return Python versions in words, by default all that the locks cover."""
    return ", ".join(f"{major}.{minor}" for major, minor in versions)


def read_packages(path: Path) -> list[PinnedPackage]:
    """Read an input file, in the order of names.

    Raises:
        ToolError: A line is not an exact pin, or a project is pinned twice.
    """
    pins: dict[str, PinnedPackage] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        where = f"{path.name}, line {number}"
        hashes = tuple(_HASH.findall(text))
        try:
            requirement = Requirement(_HASH.sub("", text))
        except InvalidRequirement as error:
            raise _bad(f"{where}: {text!r} is no requirement", path) from error
        operators = [spec.operator for spec in requirement.specifier]
        if operators != ["=="] or str(requirement.specifier).endswith("*"):
            raise _bad(f"{where}: {text!r} is no exact pin (name==version)", path)
        pin = PinnedPackage(requirement, hashes)
        if pin.name in pins:
            raise _bad(f"{where}: {pin.name} is pinned twice", path)
        pins[pin.name] = pin
    return [pins[name] for name in sorted(pins)]


def check(source: Path, lock: Path) -> None:
    """Check that a lock file was made from its input file.

    Raises:
        ToolError: It is missing, or pins something else.
    """
    wanted = [str(pin.requirement) for pin in read_packages(source)]
    lines = lock.read_text("utf-8").splitlines() if lock.is_file() else []
    locked = [line.removesuffix(" \\") for line in lines if line[:1] not in ("#", " ")]
    if locked != wanted:
        differing = sorted(set(wanted) ^ set(locked))
        raise ToolError(
            Outcome.BAD_LOCK,
            f"{lock.name} was not made from {source.name}",
            ("Make it again: python -m tools lock",),
            tuple(differing[:10]),
        )


def make(source: Path, config: IndexConfig) -> str:
    """Return the lock file for an input file.

    Args:
        source: The input file.
        config: Where to look for files.

    Raises:
        ToolError: The input is malformed, a pin has no usable file for one of the
            supported Python versions, or an index cannot be reached.
    """
    pins = read_packages(source)
    entries = []
    try:
        with ExitStack() as stack:
            clients = [stack.enter_context(config.client(url)) for url in config.urls]
            step = stack.enter_context(console.step(f"lock {source.name}", len(pins)))
            for pin in pins:
                files = [
                    file
                    for client in clients
                    for file in files_of(client, pin.name)
                    if "sha256" in file.digests
                ]
                hashes = [*pin.hashes, *_hashes(pin, files, source)]
                entries.append(_entry(pin, hashes))
                step.advance(1)
    except requests.RequestException as error:
        raise offline(
            "the list of files", error, "or keep the lock as it is"
        ) from error
    return (
        f"# Made from {source.name} by `python -m tools lock`; do not edit.\n"
        f"# All files for CPython {pythons()} on x86-64 Linux.\n" + "".join(entries)
    )


def _entry(pin: PinnedPackage, hashes: Iterable[str]) -> str:
    lines = [str(pin.requirement), *(f"--hash=sha256:{h}" for h in sorted(set(hashes)))]
    return " \\\n    ".join(lines) + "\n"


def _hashes(
    pin: PinnedPackage, packages: list[DistributionPackage], source: Path
) -> list[str]:
    """Return the hashes of those files that are usable ones of the pin."""
    wanted = pin.wanted_by()
    wheels = [(p, tags) for p in packages if (tags := _wheel_tags(p, pin))]
    usable = {
        p.digests["sha256"]
        for p, tags in wheels
        if any(tags & _tags(python, _NEWEST_GLIBC) for python in wanted)
    }
    lacking = [
        python
        for python in wanted
        if not any(tags & _tags(python, _OLDEST_GLIBC) for _, tags in wheels)
    ]
    sdists = [p.digests["sha256"] for p in packages if lacking and _is_sdist(p, pin)]
    if lacking and not (sdists or pin.hashes):
        raise _bad(
            f"{source.name}: no index has a file of {pin.requirement} for Python "
            f"{pythons(lacking)}",
            source,
        )
    return [*usable, *sdists]


def _wheel_tags(package: DistributionPackage, pin: PinnedPackage) -> frozenset[Tag]:
    """Return the tags of a wheel of the pinned version; nothing for other files."""
    try:
        _, version, _, tags = parse_wheel_filename(package.filename)
    except InvalidWheelFilename:
        return frozenset()
    fits = pin.requirement.specifier.contains(version, prereleases=True)
    return tags if fits else frozenset()


def _is_sdist(package: DistributionPackage, pin: PinnedPackage) -> bool:
    try:
        _, version = parse_sdist_filename(package.filename)
    except InvalidSdistFilename:
        return False
    return pin.requirement.specifier.contains(version, prereleases=True)


@cache
def _tags(python: tuple[int, int], glibc: int) -> frozenset[Tag]:
    """Return the wheel tags that CPython accepts on x86-64 Linux with this glibc."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(5, glibc + 1)]
    platforms += [f"manylinux{year}_x86_64" for year in ("1", "2010", "2014")]
    platforms.append("linux_x86_64")
    interpreter = "cp{}{}".format(*python)
    return frozenset(
        [
            *cpython_tags(python, abis=[interpreter], platforms=platforms),
            *compatible_tags(python, interpreter, platforms),
        ]
    )


def _bad(message: str, path: Path) -> ToolError:
    return ToolError(Outcome.BAD_LOCK, message, (f"Mend {path}",))
