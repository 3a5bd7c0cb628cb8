"""`verify-source`: the pinned sdist against upstream's git."""

from dataclasses import asdict
from pathlib import Path

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.source.fetch import GitRemote, Sdist
from tools.source.pin import Pin
from tools.tree.verify import Comparison, compare

_UPSTREAM = "https://github.com/vllm-project/vllm"


@click.command("verify-source")
@click.option(
    "--git",
    "url",
    default=_UPSTREAM,
    show_default=True,
    help="Upstream's git repository: an address or a path.",
)
@click.option(
    "--commit", default="", help="A tag or 40 digits; default: the version's tag."
)
@click.option(
    "--source",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A local copy of the pinned sdist.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context, url: str, commit: str, file: Path | None, as_json: bool
) -> None:
    """Compare the pinned sdist with the release's commit, file by file.

    Exit code 1 if a file differs, if the sdist has a file that git lacks and that no
    build tool writes, or if the commit is not the pinned one.

    Example: python -m tools verify-source --git ~/src/vllm
    """
    settings: Settings = ctx.obj
    project = settings.project
    if Path(url).is_dir():
        url = str(Path(url).resolve())
    with project.lock():
        source = Sdist(project.cache, file)
        found = compare(project, source, GitRemote(url, commit))
    version = Pin.read(project.pin_file, locked=False).version
    report = Report(
        "verify-source",
        Outcome.DONE if found.faithful else Outcome.DIFFERENT,
        f"vllm {version} and commit {found.commit[:12]}: {found.same} files are the "
        f"same, {len(found.changed)} differ",
        details=_details(found),
        data=asdict(found) | {"faithful": found.faithful},
    )
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)


def _details(found: Comparison) -> tuple[str, ...]:
    return (
        *([] if found.pinned else ["the pin names another commit"]),
        *(f"differs: {path}" for path in found.changed),
        *(f"only in the sdist: {path}" for path in found.added),
        f"only in the sdist, generated: {len(found.generated)} files",
        f"only in git: {len(found.missing)} files",
    )
