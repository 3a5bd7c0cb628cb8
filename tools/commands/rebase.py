"""`rebase`: carry the series to another release of upstream."""

from collections.abc import Callable
from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.carry.finish import Finished
from tools.carry.journal import Journal
from tools.carry.rebase import Rebase
from tools.carry.unresolved import SIDES
from tools.cli.base_options import base_options, source_of
from tools.cli.options import Settings, json_option
from tools.tree.transaction import Transaction

_AGAIN = "python -m tools rebase"


@click.command("rebase")
@click.argument("target", metavar="[RELEASE | FILE]", required=False)
@click.option("--continue", "action", flag_value="continue", help="Go on.")
@click.option("--skip", "action", flag_value="skip", help="Drop the stopped patch.")
@click.option("--abort", "action", flag_value="abort", help="Put everything back.")
@click.option("--status", "action", flag_value="status", help="Say where it stands.")
@click.option(
    "--take",
    "side",
    type=click.Choice(SIDES),
    help="Take FILE, at which it stopped, as this side has it.",
)
@click.option(
    "--no-resolutions", is_flag=True, help="Do not use the stored resolutions."
)
@base_options
@json_option
@click.pass_obj
def command(
    settings: Settings,
    target: str | None,
    action: str | None,
    side: str | None,
    no_resolutions: bool,
    url: str | None,
    ref: str | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Carry the series to RELEASE by three-way merges; the pin moves with it.

    --git and --sdist take a commit or a local sdist instead of a release of the index.

    Files change only at the end, all of them or none. At a conflict, edit the work
    tree that is named, then go on with --continue. Where a file has no lines to edit,
    for example a picture that both sides changed, say whose version it shall be with
    --take. Copies of dropped patches are kept under build/dropped.

    Example: python -m tools rebase 0.33.0
    """
    source = source_of(url, ref, file)
    if (side and not target) or bool(target or source) == bool(action):
        raise click.UsageError(
            "name a release, or one of --continue, --skip, --abort and --status, or "
            "--take SIDE FILE"
        )
    with settings.project.lock():
        rebase = Rebase(settings.project)
        if action:
            report = _ACTIONS[action](rebase)
        elif side and target:
            report = _taken(rebase, side, target)
        else:
            started = rebase.start(target or "", source, offer=not no_resolutions)
            report = _result(rebase, started)
    console.show(report, as_json)
    click.get_current_context().exit(report.outcome.exit_code)


def _status(rebase: Rebase) -> Report:
    journal = rebase.journal
    if journal is None:
        return Report("rebase", Outcome.UNCHANGED, "no rebase is under way")
    steps = (f"Go on: {_AGAIN} --continue", f"or give it up: {_AGAIN} --abort")
    if Transaction.pending(rebase.project):
        return Report(
            "rebase",
            Outcome.DONE,
            f"the rebase to {journal.new.version} was interrupted as it replaced files",
            (f"Complete it: {_AGAIN} --continue",),
            _lines(journal),
            _data(journal) | {"phase": "switch"},
        )
    if journal.stopped:
        return _stopped(rebase, journal, Outcome.DONE)
    return Report(
        "rebase",
        Outcome.DONE,
        f"a rebase to {journal.new.version} was interrupted: {_progress(journal)}",
        steps,
        _lines(journal),
        _data(journal),
    )


def _aborted(rebase: Rebase) -> Report:
    kept = rebase.abort()
    details = tuple(f"what you made is kept in {path}" for path in kept)
    return Report(
        "rebase",
        Outcome.DONE,
        "the rebase is given up; everything is as it was",
        details=details,
        data={"kept": [str(path) for path in kept]},
    )


def _result(rebase: Rebase, result: Journal | Finished) -> Report:
    if isinstance(result, Journal):
        return _stopped(rebase, result, Outcome.CONFLICT)
    journal = result.journal
    return Report(
        "rebase",
        Outcome.DONE,
        f"the series is on {journal.new.version}: {_progress(journal)}",
        (f"Read {result.report}", "Build and test: make test"),
        (*_lines(journal), f"replaced and dropped files are kept in {result.kept}"),
        _data(journal) | {"report": str(result.report), "kept": str(result.kept)},
    )


def _taken(rebase: Rebase, side: str, name: str) -> Report:
    journal = rebase.take(side, name)
    return Report(
        "rebase",
        Outcome.DONE,
        f"{name} is as {side} has it",
        (f"Go on: {_AGAIN} --continue",),
        (f"the work tree is {rebase.stop.work.path}",),
        _data(journal),
    )


def _stopped(rebase: Rebase, journal: Journal, outcome: Outcome) -> Report:
    found = journal.stopped
    assert found
    files = list(dict.fromkeys(conflict.name for conflict in found.conflicts))
    steps = (
        f"Edit {', '.join(files)} in {rebase.stop.work.path}, "
        f"then: {_AGAIN} --continue",
        f"or take a file as one side has it: {_AGAIN} --take patch {files[0]} "
        f"(or: --take upstream {files[0]})",
        f"or drop the patch, keeping a copy: {_AGAIN} --skip",
        f"or give up: {_AGAIN} --abort",
    )
    versions = rebase.stop.versions
    return Report(
        "rebase",
        outcome,
        f"{found.name} stops the rebase to {journal.new.version}: "
        f"{found.landing.value} in {', '.join(files)}",
        steps,
        (*_lines(journal), *found.details, f"the versions of each file: {versions}"),
        _data(journal),
    )


def _progress(journal: Journal) -> str:
    landed = sum(1 for entry in journal.done if entry.commit)
    dropped = len(journal.done) - landed
    return f"{landed} patches landed, {dropped} dropped, of {len(journal.series)}"


def _lines(journal: Journal) -> tuple[str, ...]:
    lines = []
    for entry in journal.done:
        lines.append(f"{entry.landing.value:9} {entry.name}")
        lines += [
            f"          {path}: stored resolution {file}"
            for path, file in entry.resolutions
        ]
        if not entry.commit:
            lines += [f"          {detail}" for detail in entry.details]
    return tuple(lines)


def _data(journal: Journal) -> dict[str, object]:
    stopped = journal.stopped
    return {
        "from": journal.old.version,
        "to": journal.new.version,
        "phase": journal.phase,
        "patches": [
            {
                "name": entry.name,
                "landing": entry.landing.value,
                "details": list(entry.details),
                "resolutions": [list(pair) for pair in entry.resolutions],
            }
            for entry in journal.done
        ],
        "stopped": {
            "name": stopped.name,
            "landing": stopped.landing.value,
            "details": list(stopped.details),
            "files": list(dict.fromkeys(c.name for c in stopped.conflicts)),
            "taken": dict(journal.taken),
        }
        if stopped
        else None,
    }


_ACTIONS: dict[str, Callable[[Rebase], Report]] = {
    "status": _status,
    "abort": _aborted,
    "skip": lambda rebase: _result(rebase, rebase.skip()),
    "continue": lambda rebase: _result(rebase, rebase.proceed()),
}
