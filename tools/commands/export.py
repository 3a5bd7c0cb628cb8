"""`export`: write the tree's commits back to patches/."""

import click

from tools import console
from tools.cli import Settings, json_option
from tools.errors import ToolError
from tools.export import Export
from tools.outcome import Outcome, Report
from tools.source import Sdist
from tools.tree import Tree


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
        if check and changed:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                "patches/ differs from the commits of the tree",
                ("Write it: python -m tools export",),
                tuple(changed),
            )
        if not check:
            expected = tree.repository.tree_of("HEAD")
            export.write(project.patches)
            tree.adopt_head()
            tree.apply(Sdist(project.cache), relock=True, expected=expected)
    outcome = Outcome.DONE if changed else Outcome.UNCHANGED
    console.show(
        Report(
            "export",
            outcome,
            f"{len(export.files) - 1} patches, {len(changed)} files changed",
            details=tuple(changed),
            data={"patches": sorted(export.files), "changed": changed},
        ),
        as_json,
    )
