"""`pin`: put the series on another base, or renew the wheels of the pinned one."""

from dataclasses import asdict
from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.carry.pinning import Pinned, pin
from tools.cli.base_options import base_options, source_of
from tools.cli.options import Settings, json_option


@click.command("pin")
@click.argument("release", required=False)
@base_options
@json_option
@click.pass_obj
def command(
    settings: Settings,
    release: str | None,
    url: str | None,
    ref: str | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Find out and record what identifies RELEASE, and pin it.

    RELEASE is one of the package index, or the name for what --git or --sdist bring;
    a version's tag and an sdist name themselves. Its hashes, its tree and the wheels
    that an index has are shown and kept in upstream/releases.toml. The pin moves if
    every patch stands there line by line; if not, `rebase` carries them. To pin the
    pinned release again renews its wheels.

    Example: python -m tools pin --git URL --ref v0.33.1
    """
    source = source_of(url, ref, file)
    if not release and not source:
        raise click.UsageError("name a release, or a base by --git or --sdist")
    with settings.project.lock():
        pinned = pin(settings.project, release or "", source)
    report = _report(pinned)
    console.show(report, as_json)
    click.get_current_context().exit(report.outcome.exit_code)


def _report(pinned: Pinned) -> Report:
    old, new = pinned.old, pinned.new
    version = new.version
    wheels = [f"wheel   {wheel.filename}" for _, wheel in sorted(new.wheels.items())]
    if pinned.obstacles:
        outcome = Outcome.CONFLICT
        message = (
            f"{version} is recorded, but the series does not stand on it as it is: "
            f"the pin stays at {old.version}"
        )
        steps: tuple[str, ...] = (f"Carry it: python -m tools rebase {version}",)
    elif new == old:
        outcome, message, steps = Outcome.UNCHANGED, f"{version} is pinned already", ()
    else:
        outcome, message = Outcome.DONE, f"{version} is pinned"
        steps = ("Build and test: make test",)
    return Report(
        "pin",
        outcome,
        message,
        steps,
        (*new.identity, *wheels, *pinned.obstacles),
        asdict(new) | {"moved": not pinned.obstacles},
    )
