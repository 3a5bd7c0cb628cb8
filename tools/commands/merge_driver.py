"""`merge-driver`: merge patches, series and lock for git."""

from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.tree import merge_driver

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("merge-driver")
@click.option("--install", is_flag=True, help="Name the driver in the checkout's git.")
@click.argument("base", type=_FILE, required=False)
@click.argument("ours", type=_FILE, required=False)
@click.argument("theirs", type=_FILE, required=False)
@click.argument("path", default="")
@json_option
@click.pass_obj
def command(
    settings: Settings,
    install: bool,
    base: Path | None,
    ours: Path | None,
    theirs: Path | None,
    path: str,
    as_json: bool,
) -> None:
    """Merge THEIRS into OURS, two versions of PATH that began as BASE.

    git runs this at a merge, as .gitattributes says; `apply` and --install tell the
    checkout's own git configuration how. Hunks far apart merge, whatever blob ids
    and line numbers say, and so do additions to the series. `apply --lock` renews
    the lock.

    Example: python -m tools merge-driver --install
    """
    if install:
        new = merge_driver.install(settings.project.root)
        outcome = Outcome.DONE if new else Outcome.UNCHANGED
        message = "merge.tagma is " + ("set" if new else "as it was")
        return console.show(Report("merge-driver", outcome, message), as_json)
    if not base or not ours or not theirs:
        raise click.UsageError("give BASE, OURS, THEIRS and PATH, or --install")
    merged = merge_driver.merge(path, *(f.read_bytes() for f in (base, ours, theirs)))
    ours.write_bytes(merged.data)
    if not merged.clean:
        raise SystemExit(1)
