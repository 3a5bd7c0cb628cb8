"""`split`: two patches out of one."""

import click

from tools.cli.moves import open_stack, patch_argument, show_rewritten
from tools.cli.options import Settings, json_option
from tools.stack.reshape import split


@click.command("split")
@patch_argument
@click.argument("parts", nargs=-1, required=True)
@click.option("--subject", required=True, help="Of the new patch.")
@click.option("--why", default="", help="The new patch's description.")
@json_option
@click.pass_obj
def command(
    settings: Settings,
    patch: str,
    parts: tuple[str, ...],
    subject: str,
    why: str,
    as_json: bool,
) -> None:
    """Move PARTS of PATCH to a new patch right behind it.

    PARTS are paths in the tree, hunks, or shell patterns: vllm/envs.py:2 is the second
    hunk of a file. To split inside a hunk: `edit` the patch, take the lines out,
    `refresh`, put them back, `new`.

    Example: python -m tools split 6 'vllm/config/*' --subject "config: add it"
    """
    with open_stack(settings.project) as stack:
        number = stack.find(patch)
        done = split(stack, number, parts, subject, why)
        message = f"split {stack.names[number - 1]}"
        show_rewritten("split", message, done, as_json, settings.project)
