"""`drift`: what upstream changed near our hunks and in what the overlays use."""

import click
from rich.markup import escape
from rich.table import Table

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.carry.drift import Drift, measure
from tools.carry.survey import releases
from tools.cli.options import Settings, json_option
from tools.source.fetch import Sdist
from tools.tree.tree import Tree


@click.command("drift")
@click.argument("old")
@click.argument("new")
@json_option
@click.pass_obj
def command(settings: Settings, old: str, new: str, as_json: bool) -> None:
    """Show what upstream changed between OLD and NEW around each hunk.

    The risk of a hunk goes from 0 (the file is the same) over 2 (its function
    changed) to 4 (its own lines changed) and 5 (the file is gone); that of a name
    that the overlays use from 1 (its body changed) over 3 (its signature) to 5.

    Example: python -m tools drift 0.32.0 0.33.0
    """
    project = settings.project
    with project.lock():
        tree = Tree(project)
        tree.apply(Sdist(project.cache))
        first, second = releases(tree, (old, new))
        drift = measure(project, tree.repository, first, second)
    if not as_json:
        console.show_table(_hunks(drift))
        console.show_table(_names(drift))
    risky = [hunk for hunk in drift.hunks if hunk.closeness.risk > 1]
    console.show(
        Report(
            "drift",
            Outcome.DONE,
            f"{len(risky)} of {len(drift.hunks)} hunks and {len(drift.names)} used "
            f"names drifted from {old} to {new}",
            (f"See whether they land: python -m tools matrix {new}",) if risky else (),
            data=drift.data(),
        ),
        as_json,
    )


def _hunks(drift: Drift) -> Table:
    table = Table("risk", "patch", "file and hunk", "in", "drift", "what upstream did")
    for hunk in sorted(drift.hunks, key=lambda h: -h.closeness.risk):
        if hunk.closeness.risk > 0:
            table.add_row(
                str(hunk.closeness.risk),
                hunk.patch.removesuffix(".patch"),
                f"{hunk.path}\n{hunk.header}",
                hunk.scope,
                f"{hunk.closeness.value}, {hunk.file_changes} places changed",
                escape("\n".join(line[:60] for line in hunk.cause)),
            )
    return table


def _names(drift: Drift) -> Table:
    table = Table("change", "name that overlays use", "what changed")
    for entry in drift.names:
        changed = [f"- {part}" for part in entry["removed"]]
        changed += [f"+ {part}" for part in entry["added"]]
        text = entry["why"] or "\n".join(line[:80] for line in changed[:4])
        table.add_row(entry["change"], entry["name"], escape(text))
    return table
