"""`show`: one patch."""

import sys

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.moves import patch_argument
from tools.cli.options import Settings, json_option
from tools.stack.stack import find
from tools.tree.patch import Patch
from tools.tree.series import Series
from tools.tree.transaction import Transaction
from tools.tree.tree import Tree


@click.command("show")
@patch_argument
@json_option
@click.pass_obj
def command(settings: Settings, patch: str, as_json: bool) -> None:
    """Print PATCH: a number, a name, or the start of one.

    Example: python -m tools show 4
    """
    project = settings.project
    if Transaction.pending(project):  # patches/ may be half old and half new
        with project.lock():
            Tree(project).recover()
    series = Series.read(project.patches)
    name = find(series.names, patch)
    data = (series.folder / name).read_bytes()
    if not as_json:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    parsed = Patch.parse(name, data)
    console.show(
        Report(
            "show",
            Outcome.DONE,
            name,
            data={
                "name": name,
                "header": parsed.fields,
                "description": parsed.description,
                "files": sorted(parsed.paths()),
                "diff": parsed.diff.decode("utf-8", "backslashreplace"),
            },
        ),
        as_json,
    )
