"""`lint`: check patches and overlays."""

from dataclasses import asdict

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.tree.lint import lint
from tools.tree.tree import Tree


@click.command("lint")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Check headers, white space and names of patches and overlays.

    Also finds patches that are empty, duplicate, unlisted or that touch an overlay,
    overlays that upstream now has, and text that `git am` would mangle. Style is
    checked by ci/lint.

    Example: python -m tools lint
    """
    settings: Settings = ctx.obj
    with settings.project.lock():
        Tree(settings.project).recover()
        findings = lint(settings.project)
    fatal = sum(finding.fatal for finding in findings)
    report = Report(
        "lint",
        Outcome.BAD_PATCH if fatal else Outcome.DONE,
        f"{fatal} findings, {len(findings) - fatal} warnings",
        ("Mend them, then: python -m tools apply --lock",) if fatal else (),
        tuple(map(str, findings)),
        {"findings": [asdict(finding) for finding in findings]},
    )
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)
