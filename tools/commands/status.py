"""`status`: where tree, patches and overlays stand to each other."""

from dataclasses import asdict

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.tree.status import Status


@click.command("status")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """Tell the pin, the place in the series, edits, and what is not in step.

    Example: python -m tools status
    """
    with settings.project.lock():
        status = Status.of(settings.project)
    console.show(
        Report(
            "status",
            Outcome.DONE,
            status.message,
            status.next_steps,
            status.details,
            asdict(status) | {"path": str(settings.project.tree)},
        ),
        as_json,
    )
