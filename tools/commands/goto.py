"""`goto`: make one patch the last that is applied."""

import click

from tools.base import console
from tools.cli.moves import move, open_stack, patch_argument
from tools.cli.options import Settings, json_option


@click.command("goto")
@patch_argument
@json_option
@click.pass_obj
def command(settings: Settings, patch: str, as_json: bool) -> None:
    """Push or pop until PATCH is the last that is applied.

    PATCH is a number, a name, or the start of one.

    Example: python -m tools goto 4
    """
    with open_stack(settings.project) as stack:
        report = move("goto", stack, stack.find(patch))
    console.show(report, as_json)
