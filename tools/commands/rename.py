"""`rename`: give a patch another file name."""

import click

from tools.cli.moves import open_stack, patch_argument, show_rewritten
from tools.cli.options import Settings, json_option
from tools.stack.reshape import rename


@click.command("rename")
@patch_argument
@click.argument("name")
@json_option
@click.pass_obj
def command(settings: Settings, patch: str, name: str, as_json: bool) -> None:
    """Give PATCH the file name NAME; it keeps its number and its subject.

    Example: python -m tools rename 4 backport-slot-mapping
    """
    with open_stack(settings.project) as stack:
        number = stack.find(patch)
        done = rename(stack, number, name)
        message = f"renamed {stack.names[number - 1]}"
        show_rewritten("rename", message, done, as_json, settings.project)
