"""`lock`: write the environments' lock files."""

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.source import lockfile
from tools.source.index import IndexConfig


@click.command("lock")
@json_option
@click.pass_obj
def command(settings: Settings, as_json: bool) -> None:
    """Write upstream/*.lock from the exact pins in upstream/*.in.

    A lock holds the hash of every file of the package index that may satisfy a
    pin, so that an install takes these files or none.

    Example: python -m tools lock && git diff --stat upstream
    """
    config = IndexConfig.from_pip()
    sources = sorted((settings.project.root / "upstream").glob("*.in"))
    made = {
        source.with_suffix(".lock"): lockfile.make(source, config) for source in sources
    }
    changed = []
    for path, text in made.items():
        if not path.is_file() or path.read_text("utf-8") != text:
            atomic.write(path, text.encode())
            changed.append(path.name)
    console.show(
        Report(
            "lock",
            Outcome.DONE if changed else Outcome.UNCHANGED,
            f"{len(made)} lock files, {len(changed)} changed",
            details=tuple(changed),
            data={"locks": [path.name for path in made], "changed": changed},
        ),
        as_json,
    )
