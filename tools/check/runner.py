"""Jobs side by side, as many as there are cores."""

import signal
import time
from collections.abc import Callable, Iterable

from tools.base import signals
from tools.check.board import Board
from tools.check.jobs import Job
from tools.check.running import Ended, Running, end_all

_POLL_S = 0.1


class Runner:
    """Runs jobs, each when what it needs has passed and a core is free.

    Args:
        launch: Starts a job on a number of cores.
        cores: How many cores there are.
        board: Shows what happens.
    """

    def __init__(self, launch: Callable[[Job, int], Running], cores: int, board: Board):
        self._launch, self._cores, self._board = launch, cores, board
        self._waiting: list[Job] = []
        self._running: list[Running] = []
        self._ended: dict[str, Ended] = {}

    def run(self, jobs: Iterable[Job]) -> list[Ended]:
        """Run jobs, begun in this order where nothing else decides.

        However this ends, by an exception or a signal too, so do all processes.

        Args:
            jobs: Each behind those that it needs.

        Returns:
            How each ended, in the order given.
        """
        self._waiting = list(jobs)
        order = [job.name for job in self._waiting]
        # A shell lets what it runs in the background ignore Ctrl-C, and so would our
        # jobs, which could then be ended by force only.
        with signals.raised(signal.SIGINT):
            try:
                with self._board.shown():
                    self._run_all()
            finally:
                end_all(self._running)
        return [self._ended[name] for name in order]

    def _run_all(self) -> None:
        while True:
            self._take_ends()
            self._drop_hopeless()
            while job := self._next():
                self._begin(job)
            if not self._running:
                assert not self._waiting, "jobs wait for each other"
                return
            self._board.tick(self._running, len(self._waiting))
            time.sleep(_POLL_S)

    def _take_ends(self) -> None:
        for running in list(self._running):
            if end := running.poll():
                self._running.remove(running)
                self._ended[end.job] = end
                self._board.ended(end)

    def _drop_hopeless(self) -> None:
        """Give up the jobs that need one that failed."""
        for job in list(self._waiting):
            lacks = tuple(
                name
                for name in job.needs
                if name in self._ended and not self._ended[name].passed
            )
            if lacks:
                self._waiting.remove(job)
                self._ended[job.name] = Ended(job.name, None, lacks=lacks)
                self._board.ended(self._ended[job.name])

    def _next(self) -> Job | None:
        """Return the job to begin now, if there is one and a core for it."""
        if not self._free_cores():
            return None
        written = {folder for running in self._running for folder in running.job.writes}
        return next(
            (
                job
                for job in self._waiting
                if all(name in self._ended for name in job.needs)
                and not written & set(job.writes)
            ),
            None,
        )

    def _begin(self, job: Job) -> None:
        self._waiting.remove(job)
        # One core stays for each job that waits.
        spare = self._free_cores() - len(self._waiting)
        running = self._launch(job, max(1, min(job.workers, spare)))
        self._running.append(running)
        self._board.began(running)

    def _free_cores(self) -> int:
        return self._cores - sum(running.workers for running in self._running)
