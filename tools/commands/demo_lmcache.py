"""`demo-lmcache`: vLLM with LMCache behind it, for paged and for tagma."""

import click

from tools.base import atomic, console
from tools.base.outcome import Outcome, Report
from tools.cli.options import Settings, json_option
from tools.compile import beside
from tools.measure.lmcache.node import Launcher
from tools.measure.lmcache.run import LMCacheDemo
from tools.serve.serving import ensure_serving


@click.command("demo-lmcache")
@click.option("--quick", is_flag=True, help="Without LMCache's further modes.")
@json_option
@click.pass_context
def command(ctx: click.Context, quick: bool, as_json: bool) -> None:
    """Serve a small model with LMCache, and load its blocks from there.

    Requests share prefixes, are preempted and aborted, and the server forgets its
    prefix cache. Exit code 1 if a token differs from those of a server without
    LMCache, tagma does not load what paged loads, blocks do not come back, or loads
    into wrong blocks do not show. Without --quick LMCache copies by itself in a
    further run, and stores lazily in others.

    Example: python -m tools demo-lmcache --quick --json

    Takes about 3 minutes of two cores with --quick, else about 6.
    """
    settings: Settings = ctx.obj
    project = settings.project
    serving = ensure_serving(project)
    site = project.build / "lmcache" / "site"
    with project.lock():
        beside.install(project, serving.host.python, "lmcache", site)
    launcher = Launcher(serving.host, serving.model, project.build, site)
    result = LMCacheDemo(launcher, quick).run()
    data = result.to_data()
    file = project.build / "demo-lmcache" / "demo-lmcache.json"
    atomic.write_json(file, data)
    if not as_json:
        console.show_table(result.table())
    good = result.outcome is Outcome.DONE
    report = Report(
        "demo-lmcache",
        result.outcome,
        "all went well" if good else "something is wrong",
        () if good else (f"Read {project.build / 'logs'}/demo-lmcache-*.log",),
        (*result.problems, f"all values: {file}"),
        data,
    )
    console.show(report, as_json)
    ctx.exit(result.outcome.exit_code)
