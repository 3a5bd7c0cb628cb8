"""What people see of jobs that run side by side."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn

from tools.base import console
from tools.check.running import Ended, Running

# A log that is silent for long looks like one that hangs.
_EVERY_S = 60.0


class Board:
    """Shows what runs, and the whole output of each job when it ends.

    Args:
        out: Where a job's output goes.
        seconds: What each job takes on an idle core, by its name.
    """

    def __init__(self, out: TextIO, seconds: dict[str, int]):
        self._out, self._seconds = out, seconds
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None
        self._said = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what runs while the block does: a line for each on a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console.stderr, transient=True) as progress:
            self._progress = progress
            yield
        self._progress = None

    def began(self, job: Running) -> None:
        """Say that a job has begun."""
        if self._progress:
            self._tasks[job.job.name] = self._progress.add_task(self._line(job))
        else:
            console.note(f"== {job.job.name} …")

    def ended(self, end: Ended) -> None:
        """Print a job's output as one block."""
        if self._progress:
            if end.job in self._tasks:
                self._progress.remove_task(self._tasks.pop(end.job))
            self._progress.stop()  # both write to the terminal
        if end.log:
            console.note(f"== {end.job}:")
            text = end.log.read_text("utf-8", "replace")
            print(text, end="" if text.endswith("\n") else "\n", file=self._out)
            self._out.flush()
        console.note(f"== {end}")
        if self._progress:
            self._progress.start()

    def tick(self, running: list[Running], waiting: int) -> None:
        """Renew what runs; where there is no terminal, once a minute."""
        if self._progress:
            for job in running:
                name = job.job.name
                self._progress.update(self._tasks[name], description=self._line(job))
        elif time.monotonic() - self._said >= _EVERY_S:
            self._said = time.monotonic()
            lines = ", ".join(map(self._line, running))
            console.note(f"running: {lines}; {waiting} wait")

    def _line(self, job: Running) -> str:
        usual = self._seconds[job.job.name]
        return f"{job.job.name} {job.seconds:.0f} s of about {usual} s"
