"""The report of a rebase as Markdown, made from its data."""

from collections.abc import Iterator
from typing import Any

from tools.carry.landing import Landing
from tools.carry.name_drift import Fate

_MEANING = {
    Landing.CLEAN: "applies as it is",
    Landing.MOVED: "the same lines stand elsewhere",
    Landing.MERGED: "placed by the three-way merge",
    Landing.RENAMED: "upstream renamed a file",
    Landing.RESOLVED: "a conflict, resolved",
    Landing.UPSTREAM: "upstream has it: dropped",
    Landing.SKIPPED: "dropped by hand",
}


def markdown(data: dict[str, Any]) -> Iterator[str]:
    """Yield the report's lines."""
    yield f"# Rebase from {data['from']} to {data['to']}"
    yield ""
    yield from _patches(data)
    yield from ("", "## Names of upstream that the overlays use", "")
    yield from _names(data["upstream_names"])
    yield from ("", "## What to do", "")
    yield from _tasks(data)


def _patches(data: dict[str, Any]) -> Iterator[str]:
    patches = data["patches"]
    landed = [patch for patch in patches if Landing(patch["landing"]).lands]
    sdist, commit = data["sdist"], data["commit"]
    source = f"sdist sha256 `{sdist}`" if sdist else f"commit `{commit}`"
    yield (
        f"{len(landed)} of {len(patches)} patches are in the new series. "
        f"{source}, patched tree `{data['tree']}`."
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


def _names(names: list[dict[str, Any]]) -> Iterator[str]:
    if not names:
        yield "None changed."
        return
    yield "| name | change | used at |"
    yield "| --- | --- | --- |"
    for entry in names:
        why = f" ({entry['why']})" if entry["why"] else ""
        places = ", ".join(entry["used_at"][:3])
        more = len(entry["used_at"]) - 3
        tail = f" and {more} more" if more > 0 else ""
        yield f"| `{entry['name']}` | {entry['change']}{why} | {places}{tail} |"
    for entry in names:
        if Fate(entry["change"]).weight > Fate.BODY.weight:
            yield from ("", f"`{entry['name']}`", "", "```diff")
            yield from (f"- {part}" for part in entry["removed"])
            yield from (f"+ {part}" for part in entry["added"])
            yield "```"


def _tasks(data: dict[str, Any]) -> Iterator[str]:
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
