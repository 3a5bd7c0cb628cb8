"""The prebuilt wheels of a base, looked for until an index has them."""

import re
from dataclasses import replace

import requests

from tools.base import console
from tools.carry.releases import Releases
from tools.source.index import IndexConfig
from tools.source.pin import Artifact, Pin

_HASH = re.compile(r"[0-9a-f]{64}")


def with_wheels(pin: Pin, known: Releases) -> Pin:
    """Return a pin with the wheels that an index has by now.

    Only those devices are looked for that some release has and the pin lacks. An index
    that cannot be reached is no error: a base can be looked at without any wheel.
    """
    missing = {d: w for d, w in known.wheels.items() if d not in pin.wheels}
    if not missing:
        return pin
    try:
        index = IndexConfig.from_pip()
        projects = {wheel.project for wheel in missing.values()}
        listed = {project: index.digests(project) for project in projects}
    except (requests.RequestException, ValueError):
        names = ", ".join(sorted(missing))
        console.note(
            f"the package index cannot be reached: wheels of {pin.version} for "
            f"{names} were not looked for"
        )
        return pin
    found = dict(pin.wheels)
    for device, wheel in missing.items():
        if made := _successor(wheel, pin.version, listed[wheel.project]):
            found[device] = made
        else:
            console.note(f"no index has a {device} wheel of {pin.version} yet")
    return replace(pin, wheels=found)


def _successor(
    wheel: Artifact, version: str, digests: dict[str, str]
) -> Artifact | None:
    """Return another version's wheel for the same kind of machine, if it is listed."""
    name, _, python, abi, platform = wheel.filename.split("-")
    same = f"{name}-{version}-{python}-{abi}-{platform}"
    machine = re.sub(r"^(many)?linux(\d+|_\d+_\d+)?_", "", platform)
    others = sorted(
        filename
        for filename in digests
        if filename.startswith(f"{name}-{version}-")
        and f"-{abi}-" in filename
        and filename.endswith(f"_{machine}")
    )
    for filename in (same, *others):
        if _HASH.fullmatch(digests.get(filename, "")):
            return replace(wheel, filename=filename, sha256=digests[filename])
    return None
