"""A job that is under way: its processes, its log, and how it ended."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tools.base.process import start
from tools.base.project import CHECKOUT, LOCK_WAIT
from tools.check.jobs import Job

# How long a job may hold the build folder while others wait: a whole build.
_LOCK_WAIT_S = 3600
# How long its processes have to end themselves: a server takes up to 20 s.
_END_S = {signal.SIGINT: 10.0, signal.SIGTERM: 25.0}


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Args:
        job: The job's name.
        status: The exit status of the command that ended it; None: it was not run.
        seconds: Wall-clock time.
        log: What its commands wrote; None: it went to the user at once.
        lacks: The jobs whose failure kept it from running.
    """

    job: str
    status: int | None
    seconds: float = 0.0
    log: Path | None = None
    lacks: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether each of its commands gave zero."""
        return self.status == 0

    def __str__(self) -> str:
        """Return the job's line of the summary."""
        if self.status is None:
            return f"{self.job}: not run, for {' and '.join(self.lacks)} failed"
        verdict = "passed" if self.passed else f"failed ({self.status})"
        return f"{self.job}: {verdict}, {self.seconds:.0f} s"


class Running:
    """A job's commands, one after the other; each in a session of its own."""

    def __init__(
        self,
        job: Job,
        commands: list[list[str]],
        workers: int,
        log: Path | None,
        to_stderr: bool = False,
    ):
        """Start the first command.

        Args:
            job: The job.
            commands: Its commands, each whole.
            workers: The cores that it was given.
            log: File that receives all output; None: the user sees it at once.
            to_stderr: Then send it to our standard error.
        """
        self.job, self.workers, self.log = job, workers, log
        self._commands = commands
        self._env = os.environ | {
            "CMAKE_BUILD_PARALLEL_LEVEL": str(workers),
            LOCK_WAIT: str(_LOCK_WAIT_S),
        }
        self._began = time.monotonic()
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
        self._output: BinaryIO = (
            log.open("wb") if log else (sys.stderr if to_stderr else sys.stdout).buffer
        )
        self._process = self._start()

    @property
    def seconds(self) -> float:
        """How long it has been under way."""
        return time.monotonic() - self._began

    def poll(self) -> Ended | None:
        """Start its next command if one ended well; return its end, if it has one."""
        status = self._process.poll()
        if status is None:
            return None
        if status == 0 and self._commands:
            self._process = self._start()
            return None
        self._close()
        return Ended(self.job.name, status, self.seconds, self.log)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait(self, deadline: float) -> bool:
        """Return whether the command ends before a time of `time.monotonic`."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _start(self) -> subprocess.Popen[bytes]:
        command = self._commands.pop(0)
        self._output.write(f"$ {shlex.join(command)}\n".encode())
        self._output.flush()
        return start(command, env=self._env, output=self._output, cwd=CHECKOUT)

    def _close(self) -> None:
        if self.log:
            self._output.close()


def end_all(running: list[Running]) -> None:
    """End jobs with all their children: as Ctrl-C does, and by force if need be."""
    left = running
    try:
        for number, limit_s in _END_S.items():
            for job in left:
                job.send(number)
            deadline = time.monotonic() + limit_s
            left = [job for job in left if not job.wait(deadline)]
    finally:  # also when the user is impatient and interrupts the wait
        for job in running:
            job.send(signal.SIGKILL)  # what its command left behind, too
            job.wait(time.monotonic() + 1)
