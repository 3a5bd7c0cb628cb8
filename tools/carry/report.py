"""What a rebase did, as Markdown for people and JSON for programs."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.base.git import Repository
from tools.base.project import Project
from tools.carry.journal import Entry, Journal
from tools.carry.landing import Landing
from tools.carry.uses import Change, Finding, Release, collect, compare
from tools.source.pin import Pin
from tools.tree.compose import base_reference

_MEANING = {
    Landing.CLEAN: "applies as it is",
    Landing.MOVED: "the same lines stand elsewhere",
    Landing.MERGED: "placed by the three-way merge",
    Landing.RENAMED: "upstream renamed a file",
    Landing.RESOLVED: "a conflict, resolved",
    Landing.UPSTREAM: "upstream has it: dropped",
    Landing.SKIPPED: "dropped by hand",
}


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
        f"{stem}.md": ("\n".join(_markdown(data)) + "\n").encode(),
    }


def collect_data(
    project: Project, repository: Repository, journal: Journal
) -> dict[str, Any]:
    """Return all that the report says."""
    old, new = (
        Release(repository, base_reference(pin)) for pin in (journal.old, journal.new)
    )
    findings = compare(collect(project.root), old, new)
    devices = sorted(set(journal.old.wheels) - set(journal.new.wheels))
    return {
        "from": journal.old.version,
        "to": journal.new.version,
        "sdist": journal.new.sdist.sha256 if journal.new.sdist else None,
        "commit": journal.new.commit,
        "tree": repository.tree_of(journal.tip),
        "patches": [_patch(entry) for entry in journal.done],
        "upstream_names": names_data(findings),
        "tests": tests_to_run(project.root, findings),
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


def names_data(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the used names that changed, the worst first, each with its users."""
    changed: dict[str, dict[str, Any]] = {}
    for finding in findings:
        if finding.change is Change.SAME:
            continue
        entry = changed.setdefault(
            finding.use.target,
            {
                "name": finding.use.target,
                "change": finding.change.value,
                "removed": [part for part in finding.old if part not in finding.new],
                "added": [part for part in finding.new if part not in finding.old],
                "why": "",
                "moved_to": finding.moved,
                "used_at": [],
            },
        )
        place = finding.use.file  # no line: that would change with every edit
        if finding.change.weight > Change(entry["change"]).weight:
            entry["change"] = finding.change.value
        entry["why"] = entry["why"] or (
            f"{place}: {finding.why}" if finding.why else ""
        )
        if place not in entry["used_at"]:
            entry["used_at"].append(place)
    return sorted(
        changed.values(), key=lambda e: (-Change(e["change"]).weight, e["name"])
    )


def tests_to_run(root: Path, findings: Iterable[Finding]) -> list[str]:
    """Return the overlays' tests that a changed name concerns.

    These are the tests that use such a name, and those whose path names the overlay
    that does, as the layout of `tests/vllm` follows that of `vllm_overlay`.
    """
    changed = {f.use.file for f in findings if f.change is not Change.SAME}
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
    if not journal.steps:
        return []
    old, new = (base_reference(pin) for pin in (journal.old, journal.new))
    first, last = journal.steps[0][1], journal.steps[-1][1]
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


def _source(data: dict[str, Any]) -> str:
    if data["sdist"]:
        return f"sdist sha256 `{data['sdist']}`"
    return f"commit `{data['commit']}`"


def _markdown(data: dict[str, Any]) -> Iterator[str]:
    patches = data["patches"]
    landed = [p for p in patches if Landing(p["landing"]).lands]
    yield f"# Rebase from {data['from']} to {data['to']}"
    yield ""
    yield (
        f"{len(landed)} of {len(patches)} patches are in the new series. "
        f"{_source(data)}, patched tree `{data['tree']}`."
    )
    yield ""
    yield "| patch | landing | meaning |"
    yield "| --- | --- | --- |"
    for patch in patches:
        landing = Landing(patch["landing"])
        yield f"| {patch['name']} | {landing.value} | {_MEANING[landing]} |"
    for patch in patches:
        if not (patch["details"] or patch["resolutions"]):
            continue
        yield from ("", f"## {patch['name']}")
        if patch["resolutions"]:
            yield ""
        for used in patch["resolutions"]:
            yield f"- `{used['file']}`: resolution `{used['resolution']}`"
        if patch["details"]:
            yield from ("", "```text", *patch["details"], "```")
    yield from ("", "## Names of upstream that the overlays use", "")
    names = data["upstream_names"]
    if not names:
        yield "None changed."
    else:
        yield "| name | change | used at |"
        yield "| --- | --- | --- |"
    for entry in names:
        why = f" ({entry['why']})" if entry["why"] else ""
        places = ", ".join(entry["used_at"][:3])
        more = len(entry["used_at"]) - 3
        tail = f" and {more} more" if more > 0 else ""
        yield f"| `{entry['name']}` | {entry['change']}{why} | {places}{tail} |"
    changed = [e for e in names if Change(e["change"]).weight > 1]
    for entry in changed:
        yield from ("", f"`{entry['name']}`", "", "```diff")
        yield from (f"- {part}" for part in entry["removed"])
        yield from (f"+ {part}" for part in entry["added"])
        yield "```"
    yield from ("", "## What to do", "")
    if devices := data["devices_without_wheel"]:
        yield (
            f"- No prebuilt wheel is known for: {', '.join(devices)}. Pin one when an "
            f"index has it, by `python -m tools pin {data['to']}`; until then the "
            "build must compile everything."
        )
    if data["requirements"]:
        yield "- Requirements changed: renew `upstream/*.in`, then run `make lock`."
        yield from ("", "```diff", *data["requirements"], "```", "")
    if tests := data["tests"]:
        yield "- Run these tests first:"
        yield from ("", *(f"  - `{test}`" for test in tests), "")
    else:
        yield "- Run `make test`."
    if tests := data["upstream_tests"]:
        yield "- Upstream's own tests of the modules that patches change:"
        yield from ("", *(f"  - `{test}`" for test in tests))
