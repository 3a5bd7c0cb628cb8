"""`apply`: make the patched tree."""

from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.base.project import Project
from tools.carry.identity import check
from tools.cli.options import Settings, json_option
from tools.source.fetch import GitRemote, Sdist
from tools.tree import merge_driver
from tools.tree.tree import Applied, Tree


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
    project = settings.project
    source = _source(project, file, url, commit)
    with project.lock():
        tree = Tree(project)
        if (url or file) and tree.repository.exists:
            check(tree, source)
        applied = tree.apply(source, drop=drop, relock=relock)
    if news := merge_driver.offer(project):
        console.note(news)
    console.show(_report(project, applied), as_json)


def _source(
    project: Project, file: Path | None, url: str | None, commit: str
) -> Sdist | GitRemote:
    if file and url:
        raise click.UsageError("--source and --git exclude each other")
    if commit and not url:
        raise click.UsageError("--commit goes with --git")
    if url:
        return GitRemote(
            str(Path(url).resolve()) if Path(url).is_dir() else url, commit
        )
    return Sdist(project.cache, file)


def _report(project: Project, applied: Applied) -> Report:
    dropped = applied.dropped
    verb = "is up to date" if applied.outcome is Outcome.UNCHANGED else "made"
    return Report(
        "apply",
        applied.outcome,
        f"{project.tree} {verb}: {applied.patches} patches, "
        f"commit {applied.commit[:12]}",
        details=(f"dropped edits are kept in {dropped}",) if dropped else (),
        data={
            "tree": applied.tree,
            "commit": applied.commit,
            "patches": applied.patches,
            "path": str(project.tree),
            "dropped": str(dropped) if dropped else None,
        },
    )
