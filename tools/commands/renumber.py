"""`renumber`: one number for each patch."""

import click

from tools.cli.moves import open_stack, show_rewritten
from tools.cli.options import Settings, json_option
from tools.stack.renumber import renumber


@click.command("renumber")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """Give patches whose number an earlier patch has the next free ones.

    Two people who each made a patch took the same number. The order stays.

    Example: python -m tools renumber
    """
    with open_stack(settings.project) as stack:
        done = renumber(stack)
        message = "renamed" if done.changed else "every patch has its own number"
        show_rewritten("renumber", message, done, as_json, settings.project)
