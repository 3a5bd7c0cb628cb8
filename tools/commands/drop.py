"""`drop`: remove a patch from the series."""

import click

from tools.cli.moves import open_stack, patch_argument, show_rewritten
from tools.cli.options import Settings, json_option
from tools.stack.reshape import drop


@click.command("drop")
@patch_argument
@json_option
@click.pass_obj
def command(settings: Settings, patch: str, as_json: bool) -> None:
    """Remove PATCH from the series; a copy is kept under build/dropped.

    Example: python -m tools drop 4
    """
    with open_stack(settings.project) as stack:
        number = stack.find(patch)
        done = drop(stack, number)
        message = f"dropped {stack.names[number - 1]}"
        show_rewritten("drop", message, done, as_json, settings.project)
