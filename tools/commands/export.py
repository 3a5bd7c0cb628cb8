"""`export`: write the tree's commits back to patches/."""

import click

from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.stack.rewrite import rewrite
from tools.tree.export import Export
from tools.tree.tree import Tree


@click.command("export")
@click.option("--check", is_flag=True, help="Change nothing; fail if they differ.")
@json_option
@click.pass_obj
def command(settings: Settings, check: bool, as_json: bool) -> None:
    """Write the commits of the patched tree to patches/, one file each.

    Every commit needs the trailers Origin, Forwarded, Upstream-Status, Last-Update
    and SPDX-License-Identifier. The tree's lock follows.

    Example: git -C build/tree commit --all --amend && python -m tools export
    """
    project = settings.project
    with project.lock():
        tree = Tree(project)
        export = Export.of(tree, project.patches)
        changed = export.differences(project.patches)
        kept = ""
        if check and changed:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                "patches/ differs from the commits of the tree",
                ("Write it: python -m tools export",),
                tuple(changed),
            )
        if not check:
            done = rewrite(tree, "export", export.steps, len(export.steps))
            kept = done.kept if changed else ""
    outcome = Outcome.DONE if changed else Outcome.UNCHANGED
    console.show(
        Report(
            "export",
            outcome,
            f"{len(export.steps)} patches, {len(changed)} files changed",
            details=(*changed, *(("what they replace is in " + kept,) if kept else ())),
            data={
                "patches": [patch.name for patch in export.patches],
                "changed": changed,
                "kept": kept or None,
            },
        ),
        as_json,
    )
