"""`style`: rules and form of all our files."""

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.check.sizes import too_long
from tools.check.style import checks
from tools.cli.options import Settings, json_option
from tools.source.fetch import Sdist
from tools.tree.tree import Tree


@click.command("style")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Check the tools by ruff and mypy, what is laid into the tree by upstream's rules.

    No module of the tools is over 250 lines and no function over 40, no file directly
    in csrc_tagma/ over 900. Patches and overlays are checked by `lint`.

    Example: python -m tools style
    """
    settings: Settings = ctx.obj
    project = settings.project
    with project.lock():
        Tree(project).apply(Sdist(project.cache))
    found = {check.name: check.complaints() for check in checks(project)}
    found["sizes"] = list(too_long(project.root))
    broken = [name for name, lines in found.items() if lines]
    report = Report(
        "style",
        Outcome.COMMAND_FAILED if broken else Outcome.DONE,
        f"broken: {', '.join(broken)}" if broken else f"{len(found)} checks passed",
        details=tuple(line for lines in found.values() for line in lines),
        data={"found": found},
    )
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)
