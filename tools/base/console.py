"""What people see: progress bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tools.base.outcome import Report

# Progress and notes go to standard error, so that standard output holds the
# result alone, whether it is text or JSON.
stderr = Console(stderr=True, highlight=False, soft_wrap=True)
stdout = Console(highlight=False, soft_wrap=True)
_WIDE = 200  # what a log or a pipe can hold


# How to call the tools from the user's folder, for the next steps of a report. The
# command line sets it, with the options that name another checkout.
invocation = "python -m tools"


class Step(Protocol):
    """Something long that is under way."""

    def advance(self, amount: float) -> None:
        """Say that `amount` more of the total is done."""


class _BarStep:
    def __init__(self, progress: Progress, name: str, total: float | None):
        self._progress = progress
        self._task = progress.add_task(name, total=total)

    def advance(self, amount: float) -> None:
        self._progress.advance(self._task, amount)


class _LineStep:
    """Prints a line at most every few seconds, for logs."""

    _EVERY_S = 5.0

    def __init__(self, name: str, total: float | None):
        self._name, self._total, self._done = name, total, 0.0
        self._begin = self._last = time.monotonic()

    def advance(self, amount: float) -> None:
        self._done += amount
        if time.monotonic() - self._last >= self._EVERY_S:
            self._last = time.monotonic()
            share = self._done / self._total if self._total else None
            passed = f"{self._last - self._begin:.0f} s"
            note(f"{self._name}: {passed if share is None else f'{share:.0%}'}")


@contextmanager
def step(name: str, total: float | None = None, unit: str = "") -> Iterator[Step]:
    """Show a long step while the block runs.

    Args:
        name: What is being done, for example "apply the series".
        total: How much there is to do, in units of `Step.advance`; None: unknown.
        unit: "bytes" shows sizes.
    """
    if not sys.stderr.isatty():
        note(f"{name} …")
        yield _LineStep(name, total)
        return
    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
    if unit == "bytes":
        columns.append(DownloadColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=stderr, transient=True
    ) as progress:
        yield _BarStep(progress, name, total)


def note(text: str) -> None:
    """Print one line about what is going on."""
    stderr.print(text, markup=False)


def show(report: Report, as_json: bool) -> None:
    """Print a command's report."""
    steps = tuple(
        step.replace("python -m tools", invocation) for step in report.next_steps
    )
    if as_json:
        print(replace(report, next_steps=steps).to_json())
        return
    failed = report.outcome.exit_code != 0
    out = stderr if failed else stdout
    out.print(f"error: {report.message}" if failed else report.message, markup=False)
    for line in report.details:
        out.print(f"  {line}", markup=False)
    for line in steps:
        out.print(f"next: {line}", markup=False)


def show_table(table: Table) -> None:
    """Print a table; only a terminal folds its cells."""
    (stdout if stdout.is_terminal else Console(width=_WIDE)).print(table)
