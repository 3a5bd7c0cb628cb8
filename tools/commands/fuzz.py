"""`fuzz`: the engine's libFuzzer target."""

import click

from tools.base import console
from tools.base.outcome import Outcome, Report
from tools.check import packages
from tools.cli.options import Settings, json_option
from tools.measure.fuzzer import Fuzzed, Fuzzer


@click.command("fuzz")
@click.option(
    "--seconds",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="How long to run.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the random inputs; 0 takes another one each time.",
)
@click.option(
    "--save",
    is_flag=True,
    help="Then make the committed corpus a small one that reaches as much.",
)
@click.option(
    "--install",
    is_flag=True,
    help="As root on Debian or Ubuntu, install clang and its fuzzer if missing.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    seconds: int,
    seed: int,
    save: bool,
    install: bool,
    as_json: bool,
) -> None:
    """Feed the engine random operations, and check each against a model.

    Begins with csrc_tagma/fuzz/corpus and what earlier runs found here. Exit code
    1 if an input breaks a promise of the engine or a sanitizer complains.

    Example: python -m tools fuzz --seconds 1800
    """
    settings: Settings = ctx.obj
    project = settings.project
    if install:
        packages.install_fuzzer()
    # Not while it runs: that can take long, and changes nothing others use.
    with project.lock():
        fuzzer = Fuzzer.build(project)
    fuzzed = fuzzer.run(seconds, seed)
    if save and not fuzzed.crash:
        console.note(f"{fuzzer.save()} inputs are in {fuzzer.seeds}")
    report = _report(fuzzer, fuzzed)
    console.show(report, as_json)
    ctx.exit(report.outcome.exit_code)


def _report(fuzzer: Fuzzer, fuzzed: Fuzzed) -> Report:
    coverage = (
        f"{fuzzed.runs} inputs tried; {fuzzed.edges} edges, {fuzzed.features} "
        f"features, {fuzzed.inputs} inputs in the corpus"
    )
    if not fuzzed.crash:
        return Report(
            "fuzz",
            Outcome.DONE,
            f"nothing found in {fuzzed.seconds} s",
            details=(coverage,),
            data=fuzzed.to_data(),
        )
    return Report(
        "fuzz",
        Outcome.COMMAND_FAILED,
        "the engine broke a promise",
        (f"Run it again: {fuzzer.program} {fuzzed.crash}", f"Read {fuzzer.log}"),
        (*fuzzed.findings, coverage),
        fuzzed.to_data(),
    )
