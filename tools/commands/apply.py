"""`apply`: make the patched tree."""

from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.group import Settings, json_option
from tools.source.source import GitRemote, Sdist, Source
from tools.tree import merge_driver
from tools.tree.tree import Tree


@click.command("apply")
@click.option(
    "--source",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A local copy of the pinned sdist.",
)
@click.option(
    "--git",
    "url",
    help="A git repository that has the pinned commit with the sdist's very files.",
)
@click.option("--commit", default="", help="With --git: the commit, 40 digits.")
@click.option("--drop", is_flag=True, help="Drop edits in the tree, keeping a copy.")
@click.option(
    "--lock", "relock", is_flag=True, help="Accept the result as upstream/tree.lock."
)
@json_option
@click.pass_obj
def command(
    settings: Settings,
    file: Path | None,
    url: str | None,
    commit: str,
    drop: bool,
    relock: bool,
    as_json: bool,
) -> None:
    """Fetch the pinned release, lay the overlays and apply the series.

    Example: python -m tools apply --source vllm-0.32.0.tar.gz
    """
    if file and url:
        raise click.UsageError("--source and --git exclude each other")
    if commit and not url:
        raise click.UsageError("--commit goes with --git")
    if url and Path(url).is_dir():
        url = str(Path(url).resolve())
    project = settings.project
    source: Source = GitRemote(url, commit) if url else Sdist(project.cache, file)
    with project.lock():
        applied = Tree(project).apply(source, drop=drop, relock=relock)
    if news := merge_driver.offer(project):
        console.note(news)
    verb = "is up to date" if applied.outcome is Outcome.UNCHANGED else "made"
    details = (
        (f"dropped edits are kept in {applied.dropped}",) if applied.dropped else ()
    )
    console.show(
        Report(
            "apply",
            applied.outcome,
            f"{project.tree} {verb}: {applied.patches} patches, "
            f"commit {applied.commit[:12]}",
            details=details,
            data={
                "tree": applied.tree,
                "commit": applied.commit,
                "patches": applied.patches,
                "path": str(project.tree),
                "dropped": str(applied.dropped) if applied.dropped else None,
            },
        ),
        as_json,
    )
