"""`matrix`: where the series lands on several releases."""

import json
from pathlib import Path

import click
from rich.table import Table

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.carry import heatmap
from tools.carry.landing import Landing
from tools.carry.matrix import Matrix
from tools.carry.matrix_text import markdown
from tools.carry.survey import measure
from tools.cli.options import Settings, json_option

_STYLES = {Landing.UPSTREAM: "blue", Landing.RESOLVED: "yellow"}


@click.command("matrix")
@click.argument("releases", nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for matrix.md, matrix.json and matrix.svg.",
)
@json_option
@click.pass_obj
def command(
    settings: Settings, releases: tuple[str, ...], output: Path | None, as_json: bool
) -> None:
    """Carry the series to each of RELEASES, changing nothing, and show a table.

    Also says which names and signatures of upstream that the overlays use changed.

    Example: python -m tools matrix 0.31.0 0.32.0 0.33.0 --output upstream/reports
    """
    with settings.project.lock():
        matrix = measure(settings.project, releases)
    written = _write(matrix, output) if output else []
    if not as_json:
        console.show_table(_table(matrix))
    share = matrix.share([column.version for column in matrix.columns])
    cells = (len(matrix.patches) + 1) * len(matrix.columns)
    stops = [
        f"{column.version}: an overlay would replace upstream's {path}, so no rebase "
        "to it begins"
        for column in matrix.columns
        for path in column.replaced
    ]
    console.show(
        Report(
            "matrix",
            Outcome.DONE,
            f"in {share:.0%} of {cells} cells nobody need act",
            details=(*stops, *written),
            data=matrix.data() | {"written": written},
        ),
        as_json,
    )


def _write(matrix: Matrix, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(matrix.data(), indent=2) + "\n"
    atomic.write(folder / "matrix.json", text.encode())
    atomic.write(folder / "matrix.md", markdown(matrix).encode())
    heatmap.draw(matrix, folder / "matrix.svg")
    return [str(folder / f"matrix.{kind}") for kind in ("json", "md", "svg")]


def _table(matrix: Matrix) -> Table:
    table = Table("patch", *(column.version for column in matrix.columns))
    for number, name in enumerate(matrix.patches):
        cells = [column.cells[number] for column in matrix.columns]
        texts = [
            f"[{'red' if not c.good else _STYLES.get(c.landing, 'green')}]"
            f"{c.landing.value}[/]"
            for c in cells
        ]
        table.add_row(name.removesuffix(".patch"), *texts)
    table.add_section()
    words = [
        f"[{'red' if column.replaced else 'green'}]{column.overlays}[/]"
        for column in matrix.columns
    ]
    table.add_row("overlays", *words)
    for change in ("same", "body", "signature", "misfit", "missing"):
        counts = [str(column.fates.get(change, 0)) for column in matrix.columns]
        table.add_row(f"names that overlays use: {change}", *counts)
    return table
