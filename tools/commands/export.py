"""`export`: write the tree's commits back to patches/."""

import click

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.stack.rewrite import rewrite
from tools.tree.export import Export
from tools.tree.sides import Sides
from tools.tree.tree import Tree


@click.command("export")
@click.option("--check", is_flag=True, help="Change nothing; fail if they differ.")
@click.option(
    "--force",
    is_flag=True,
    help="Write over patches newer than the tree, too.",
)
@json_option
@click.pass_obj
def command(settings: Settings, check: bool, force: bool, as_json: bool) -> None:
    """Write the commits of the patched tree to patches/, one file each.

    Every commit needs the trailers Origin, Forwarded, Upstream-Status, Last-Update
    and SPDX-License-Identifier. The tree's lock follows. Stops where patch files
    changed since the tree was made of them.

    Example: git -C build/tree commit --all --amend && python -m tools export
    """
    project = settings.project
    with project.lock():
        tree = Tree(project)
        export = Export.of(tree, project.patches)
        changed = export.differences(project.patches)
        kept = ""
        if changed and not force:
            _refuse(tree, check, changed)
        if not check:
            done = rewrite(tree, "export", export.placed, len(export.placed))
            kept = done.kept if changed else ""
    outcome = Outcome.DONE if changed else Outcome.UNCHANGED
    console.show(
        Report(
            "export",
            outcome,
            f"{len(export.placed)} patches, {len(changed)} files changed",
            details=(*changed, *(("what they replace is in " + kept,) if kept else ())),
            data={
                "patches": [patch.name for patch in export.patches],
                "changed": changed,
                "kept": kept or None,
            },
        ),
        as_json,
    )


def _refuse(tree: Tree, check: bool, changed: list[str]) -> None:
    """Stop if only a check was asked for, or the files are newer than the tree."""
    assert tree.state
    sides = Sides.of(tree, tree.state)
    if check:
        raise ToolError(
            Outcome.OUT_OF_SYNC,
            f"patches/ differs from the commits of the tree: {sides.message}",
            sides.steps,
            tuple(changed),
        )
    sides.refuse_overwriting()
