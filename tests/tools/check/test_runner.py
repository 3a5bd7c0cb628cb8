"""Jobs run side by side where they may, and none outlives the runner."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import REPOSITORY

from tools.check.board import Board
from tools.check.jobs import Job
from tools.check.runner import Runner
from tools.check.running import Ended, Running

# Both succeed only if they run at the same time.
MEET = """\
import pathlib, sys, time
mine, other = map(pathlib.Path, sys.argv[1:])
mine.touch()
while not other.exists():
    time.sleep(0.01)
"""
# Fails if another one is in the folder.
ALONE = """\
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
time.sleep(0.3)
folder.rmdir()
"""


class Stage:
    """Jobs of small programs, and what became of them."""

    def __init__(self, folder: Path, cores: int):
        self.folder, self.cores = folder, cores
        self.programs: dict[str, list[list[str]]] = {}
        self.given: dict[str, int] = {}
        self.out = io.StringIO()

    def run(self, *jobs: tuple[Job, list[list[str]]]) -> list[Ended]:
        """Run jobs, each with the arguments of a Python for each of its commands."""
        programs = {job.name: commands for job, commands in jobs}

        def launch(job: Job, workers: int) -> Running:
            self.given[job.name] = workers
            commands = [[sys.executable, *words] for words in programs[job.name]]
            return Running(job, commands, workers, self.folder / f"{job.name}.log")

        board = Board(self.out, {job.name: 1 for job, _ in jobs})
        return Runner(launch, self.cores, board).run(job for job, _ in jobs)


@pytest.fixture
def stage(tmp_path: Path) -> Callable[[int], Stage]:
    return lambda cores: Stage(tmp_path, cores)


def python(text: str, *words: object) -> list[list[str]]:
    return [["-c", text, *map(str, words)]]


def test_jobs_run_at_once_on_two_cores(stage, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    ends = stage(2).run(
        (Job("one", ()), python(MEET, a, b)), (Job("two", ()), python(MEET, b, a))
    )
    assert all(end.passed for end in ends)


def test_no_more_run_at_once_than_there_are_cores(stage, tmp_path: Path) -> None:
    jobs = [(Job(str(n), ()), python(ALONE, tmp_path / "in")) for n in range(3)]
    assert [end.status for end in stage(1).run(*jobs)] == [0, 0, 0]


def test_writers_of_one_folder_take_turns(stage, tmp_path: Path) -> None:
    jobs = [
        (Job(str(n), (), writes=("x",)), python(ALONE, tmp_path / "in"))
        for n in range(3)
    ]
    assert [end.status for end in stage(3).run(*jobs)] == [0, 0, 0]


def test_a_job_begins_when_what_it_needs_has_passed(stage, tmp_path: Path) -> None:
    made = tmp_path / "made"
    write = (
        "import pathlib, sys, time; time.sleep(0.3); pathlib.Path(sys.argv[1]).touch()"
    )
    read = "import pathlib, sys; pathlib.Path(sys.argv[1]).read_text()"
    ends = stage(2).run(
        (Job("reads", (), needs=("writes",)), python(read, made)),
        (Job("writes", ()), python(write, made)),
    )
    assert [end.status for end in ends] == [0, 0]


def test_what_needs_a_failed_job_is_not_run_and_says_so(stage, tmp_path: Path) -> None:
    ends = stage(2).run(
        (Job("base", ()), python("raise SystemExit(7)")),
        (Job("next", (), needs=("base",)), python("")),
        (Job("last", (), needs=("next",)), python("")),
        (Job("other", ()), python("")),
    )
    assert [end.status for end in ends] == [7, None, None, 0]
    assert str(ends[1]) == "next: not run, for base failed"
    assert not (tmp_path / "next.log").exists()


def test_commands_of_a_job_follow_each_other_until_one_fails(stage, tmp_path) -> None:
    commands = [*python("print(1)"), *python("exit(3)"), *python("print(2)")]
    (end,) = stage(1).run((Job("one", ()), commands))
    assert end.status == 3
    lines = (tmp_path / "one.log").read_text().splitlines()
    assert [line for line in lines if not line.startswith("$ ")] == ["1"]


def test_the_output_of_each_stays_whole(stage, tmp_path: Path) -> None:
    """Both write by turns, each waiting for the other's file."""
    speak = """\
import pathlib, sys, time
name, folder, first = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3] == "1"
for n in range(20):
    turn = 2 * n + (not first)
    while turn and not (folder / str(turn - 1)).exists():
        time.sleep(0.001)
    print(name, n, flush=True)
    print(name, n, file=sys.stderr, flush=True)
    (folder / str(turn)).touch()
"""
    run = stage(2)
    run.run(
        (Job("a", ()), python(speak, "a", tmp_path, 1)),
        (Job("b", ()), python(speak, "b", tmp_path, 0)),
    )
    said = [
        line for line in run.out.getvalue().splitlines() if line[:2] in ("a ", "b ")
    ]
    assert len(said) == 80
    names = [line[0] for line in said]
    assert names == sorted(names) or names == sorted(names, reverse=True)


def test_a_job_gets_the_cores_that_no_other_waits_for(stage) -> None:
    run = stage(8)
    big, small = Job("big", (), workers=4), Job("small", (), workers=1)
    rest = Job("rest", (), workers=9)
    run.run((big, python("")), (small, python("")), (rest, python("")))
    assert run.given == {"big": 4, "small": 1, "rest": 3}
    few = stage(2)
    few.run((big, python("")), (rest, python("")))
    assert few.given["big"] == 1


# A runner in a process of its own; each job has a child in its session.
RUNNER = """\
import io, sys
from pathlib import Path
from tools.check.board import Board
from tools.check.jobs import Job
from tools.check.runner import Runner
from tools.check.running import Running
folder = Path(sys.argv[1])
CHILD = '''
import os, pathlib, signal, subprocess, sys, time
if sys.argv[2] == "deaf":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
file = pathlib.Path(sys.argv[1])
file.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
file.with_suffix(".new").rename(file)
time.sleep(600)
'''
def launch(job, workers):
    command = [sys.executable, "-c", CHILD, str(folder / job.name), sys.argv[2]]
    return Running(job, [command], workers, folder / f"{job.name}.log")
jobs = [Job("a", ()), Job("b", ())]
Runner(launch, 2, Board(io.StringIO(), {"a": 1, "b": 1})).run(jobs)
"""


def lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_signal_ends_all_jobs_and_their_children(
    tmp_path: Path,
    number: signal.Signals,
    handler: signal.Handlers,
    request: pytest.FixtureRequest,
) -> None:
    """A shell has what it runs in the background ignore SIGINT, nohup SIGHUP."""
    before = signal.signal(number, handler)  # what the runner inherits
    request.addfinalizer(lambda: signal.signal(number, before))
    runner, pids = begin(tmp_path, "hears")
    runner.send_signal(number)
    assert runner.wait() != 0
    assert not any(map(lives, pids))


def test_a_job_that_ignores_signals_is_ended_all_the_same(
    tmp_path: Path,
) -> None:
    runner, pids = begin(tmp_path, "deaf", "_END_S = {signal.SIGINT: 0.1}")
    runner.send_signal(signal.SIGTERM)
    assert runner.wait() != 0
    assert not any(map(lives, pids))


def begin(
    folder: Path, mode: str, *settings: str
) -> tuple[subprocess.Popen, list[int]]:
    """Start the runner and return the processes that its jobs consist of."""
    setting = "".join(
        f"import signal\nfrom tools.check import running\nrunning.{line}\n"
        for line in settings
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", setting + RUNNER, folder, mode], cwd=REPOSITORY
    )
    files = [folder / "a", folder / "b"]
    while not all(file.exists() for file in files):
        assert runner.poll() is None
        time.sleep(0.02)
    return runner, [int(pid) for file in files for pid in file.read_text().split()]


def test_a_job_has_the_variables_that_let_it_share(stage, tmp_path: Path) -> None:
    names = ["CMAKE_BUILD_PARALLEL_LEVEL", "TAGMA_LOCK_WAIT"]
    show = f"import json, os; print(json.dumps([os.environ[n] for n in {names}]))"
    stage(3).run((Job("one", (), workers=2), python(show)))
    last = (tmp_path / "one.log").read_text().splitlines()[-1]
    assert json.loads(last) == ["2", "3600"]
    assert "TAGMA_LOCK_WAIT" not in os.environ
