"""`picture`: the pictures of ARCHITECTURE.md."""

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.picture.architecture import PICTURES
from tools.picture.flow import draw


@click.command("picture")
@click.option("--check", is_flag=True, help="Only compare; exit 1 if one is outdated.")
@json_option
@click.pass_obj
def command(settings: Settings, check: bool, as_json: bool) -> None:
    """Draw how a patch and how a block flows, into .github/images.

    Example: python -m tools picture
    """
    folder = settings.project.root / ".github" / "images"
    outdated = []
    with TemporaryDirectory() as scratch:
        for name, flow in PICTURES.items():
            drawn, kept = Path(scratch) / name, folder / name
            draw(flow, drawn)
            if not kept.is_file() or kept.read_bytes() != drawn.read_bytes():
                outdated.append(name)
                if not check:
                    atomic.write(kept, drawn.read_bytes())
    outcome = Outcome.DONE if outdated else Outcome.UNCHANGED
    message = f"{len(PICTURES)} pictures, {len(outdated)} changed"
    steps: tuple[str, ...] = ()
    if check and outdated:
        outcome, steps = Outcome.OUT_OF_SYNC, ("Draw them: python -m tools picture",)
        message = f"{len(outdated)} of {len(PICTURES)} pictures are outdated"
    data = {"changed": outdated}
    console.show(
        Report("picture", outcome, message, steps, tuple(outdated), data), as_json
    )
    raise SystemExit(outcome.exit_code)
