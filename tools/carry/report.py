"""What a rebase did, as Markdown for people and JSON for programs."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.base.git import Repository
from tools.base.project import Project
from tools.carry.definitions import Definitions
from tools.carry.journal import Entry, Journal
from tools.carry.name_drift import Fate, NameDrift, compare, names_data
from tools.carry.report_text import markdown
from tools.carry.uses import collect
from tools.source.pin import Pin
from tools.tree.compose import base_reference


def name(old: Pin, new: Pin) -> str:
    """Return the name that a rebase's report and copies go by."""
    return f"rebase-{old.version}-{new.version}"


def files(
    project: Project, repository: Repository, journal: Journal
) -> dict[str, bytes]:
    """Return the report's files, by name.

    They hold no time and no path of this machine: the same rebase gives the same
    bytes.
    """
    data = collect_data(project, repository, journal)
    stem = name(journal.old, journal.new)
    text = json.dumps(data, indent=2) + "\n"
    return {
        f"{stem}.json": text.encode(),
        f"{stem}.md": ("\n".join(markdown(data)) + "\n").encode(),
    }


def collect_data(
    project: Project, repository: Repository, journal: Journal
) -> dict[str, Any]:
    """Return all that the report says."""
    old, new = (
        Definitions(repository, base_reference(pin))
        for pin in (journal.old, journal.new)
    )
    used = compare(collect(project.root), old, new)
    devices = sorted(set(journal.old.wheels) - set(journal.new.wheels))
    return {
        "from": journal.old.version,
        "to": journal.new.version,
        "sdist": journal.new.sdist.sha256 if journal.new.sdist else None,
        "commit": journal.new.commit,
        "tree": repository.tree_of(journal.tip),
        "patches": [_patch(entry) for entry in journal.done],
        "upstream_names": names_data(used),
        "tests": tests_to_run(project.root, used),
        "upstream_tests": _upstream_tests(repository, journal),
        "requirements": _requirements(repository, journal),
        "devices_without_wheel": devices,
    }


def _patch(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "landing": entry.landing.value,
        "details": list(entry.details),
        "resolutions": [
            {"file": path, "resolution": file} for path, file in entry.resolutions
        ],
    }


def tests_to_run(root: Path, used: Iterable[NameDrift]) -> list[str]:
    """Return the overlays' tests that a changed name concerns.

    These are the tests that use such a name, and those whose path names the overlay
    that does, as the layout of `tests/vllm` follows that of `vllm_overlay`.
    """
    changed = {name.use.file for name in used if name.fate is not Fate.SAME}
    chosen = {name for name in changed if name.startswith("tests/")}
    folders = {Path(n).relative_to("vllm_overlay").parts[:2]
               for n in changed if n.startswith("vllm_overlay/")}  # fmt: skip
    for path in sorted((root / "tests" / "vllm").rglob("test_*.py")):
        inside = path.relative_to(root / "tests" / "vllm").parts[:2]
        if inside in folders or ("v1", "kv_cache_backend.py") in folders:
            chosen.add(str(path.relative_to(root)))
    return sorted(chosen)


def _upstream_tests(repository: Repository, journal: Journal) -> list[str]:
    """Return upstream's tests of the changed modules that we patch.

    These import such a module and lie where `tests` mirrors its folder; tests that
    import it from elsewhere are too many to be run first.
    """
    if not journal.series:
        return []
    old, new = (base_reference(pin) for pin in (journal.old, journal.new))
    first, last = journal.series[0][1], journal.series[-1][1]
    patched = repository.paths_between(f"{first}^", last)
    changed = repository.paths_between(old, new) & patched
    found = set()
    for path in sorted(changed):
        if not (path.startswith("vllm/") and path.endswith(".py")):
            continue
        module = path.removesuffix(".py").replace("/", ".")
        mirror = "/".join(["tests", *Path(path).parts[1:-1][:2]])
        listed = repository.git(
            *("grep", "-F", "--name-only", "-z", "-e", f"from {module} import", new),
            *("--", f"{mirror}/**test_*.py"),
            check=False,
        )
        found |= {name.partition(":")[2] for name in listed.text.split("\0") if name}
    return sorted(found)


def _requirements(repository: Repository, journal: Journal) -> list[str]:
    """Return the changed lines of upstream's requirements, with their signs."""
    sides = [base_reference(pin) for pin in (journal.old, journal.new)]
    done = repository.git(
        *("diff", "--unified=0", "--no-color", *sides, "--"),
        *("requirements/common.txt", "requirements/cpu.txt"),
    )
    lines = []
    for line in done.text.split("\n"):
        if line.startswith("+++ b/"):
            lines.append(line.removeprefix("+++ b/"))
        elif line[:1] in "+-" and not line.startswith("---") and line[1:].strip():
            lines.append(line)
    return lines
