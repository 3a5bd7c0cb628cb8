"""`series`: the patches and whether they are applied."""

import click
from rich.table import Table

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.moves import open_stack, place, place_data
from tools.cli.options import Settings, json_option


@click.command("series")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """List the patches of the series with their state.

    `+` is applied, `=` is the last applied one, `-` is not applied.

    Example: python -m tools series
    """
    with open_stack(settings.project, edits=True, rebasing=True) as stack:
        patches = [
            {
                "name": patch.name,
                "state": _state(number, stack.position),
                "subject": patch.fields["Subject"],
                "status": patch.fields["Upstream-Status"],
                "files": sorted(patch.paths()),
            }
            for number, patch in enumerate(stack.patches, start=1)
        ]
        report = Report(
            "series",
            Outcome.DONE,
            place(stack),
            data=place_data(stack) | {"patches": patches},
        )
    if not as_json:
        table = Table(box=None, pad_edge=False)
        for column in ("", "patch", "files", "upstream", "subject"):
            table.add_column(column, no_wrap=True)
        for entry in patches:
            table.add_row(
                _SIGNS[str(entry["state"])],
                str(entry["name"]),
                str(len(entry["files"])),
                str(entry["status"]).split(" ")[0],
                str(entry["subject"]),
            )
        console.show_table(table)
    console.show(report, as_json)


_SIGNS = {"applied": "+", "last": "=", "popped": "-"}


def _state(number: int, position: int) -> str:
    if number == position:
        return "last"
    return "applied" if number < position else "popped"
