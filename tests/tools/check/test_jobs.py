"""The jobs of `make test`: their table, their scripts, and the command `test`."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from checkout import REPOSITORY, Checkout

from tools.base.project import LOCK_WAIT
from tools.check import jobs
from tools.check.jobs import GROUPS, JOBS, NAMES, PREPARATIONS, Job
from tools.cli.group import main

EVERY = (*PREPARATIONS, *JOBS)


def test_each_job_has_a_script_of_one_command_and_each_script_a_job() -> None:
    scripts = {path.name: path for path in (REPOSITORY / "ci").iterdir()}
    assert set(scripts) == set(NAMES)
    for job in JOBS:
        lines = scripts[job.name].read_text().splitlines()
        assert lines[0] == "#!/bin/sh" and os.access(scripts[job.name], os.X_OK)
        words = ' -- "$@"' if job.takes_arguments else ""
        tagma = '"$(dirname "$0")/../tools/bin/tagma"'
        code = [line for line in lines if not line.startswith("#")]
        assert code == [f"exec {tagma} test {job.name}{words}"]


@pytest.mark.parametrize("job", EVERY, ids=lambda job: job.name)
def test_commands_of_a_job_are_ones_that_the_tools_take(job: Job) -> None:
    context = click.Context(main)
    for words in job.resolved(2, ("-k", "one")):
        command = main.get_command(context, words[0])
        assert command, words[0]
        command.make_context(words[0], words[1:])


def test_a_job_needs_only_what_is_run_before_it() -> None:
    for job in JOBS:
        planned = [other.name for other in jobs.with_preparations([job])]
        assert set(job.needs) <= set(planned[: planned.index(job.name)])


def test_no_two_jobs_write_the_same_folder() -> None:
    written = [file for job in EVERY for file in job.writes]
    written = [file for file in written if file not in jobs.SHARED]
    assert len(written) == len(set(written))


def test_a_group_names_jobs_and_has_a_name_of_its_own() -> None:
    assert {name for group in GROUPS.values() for name in group} <= set(NAMES)
    assert not set(GROUPS) & set(NAMES)


def test_names_and_groups_choose_each_job_once_in_the_tables_order() -> None:
    def names(*words: str) -> list[str]:
        return [job.name for job in jobs.chosen(words)]

    assert names() == list(NAMES)
    assert names("tools", "lint", "tooling") == ["series", "lint", "tools"]


@pytest.fixture
def two(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A checkout of which the job `series` passes and `lint` fails."""
    table = (Job("series", (("series",),)), Job("lint", (("show", "99"),)))
    monkeypatch.setattr(jobs, "JOBS", table)
    return checkout


def test_a_failure_is_named_with_its_log_and_how_to_run_it_alone(two: Checkout) -> None:
    log = two.project.build / "logs" / "test" / "lint.log"
    text = two.tools("test", code=1).output
    assert f"next: Run it alone: ci/lint\nnext: Read {log}\n" in text
    assert re.search(r"^  lint: failed \(2\), \d+ s$", text, re.M)
    assert re.search(r"^  series: passed, \d+ s$", text, re.M)
    assert "0002-crlf.patch" in text and "99" in log.read_text()
    assert text.splitlines()[-1] == "1 passed, 1 failed"


def test_the_result_is_one_json_and_output_goes_elsewhere(two: Checkout) -> None:
    done = two.cli("test", "series", "--json")
    # As a user runs it: the real job, whose tree is the tiny checkout's.
    data = json.loads(done.stdout)["data"]["jobs"]
    assert [job["job"] for job in data] == ["series"]


def test_a_job_alone_shows_its_output_at_once(checkout: Checkout) -> None:
    done = checkout.cli("test", "series")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 patches, 0 files changed" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed"
    assert not (checkout.project.build / "logs" / "test").exists()


def test_words_go_only_to_one_job_that_takes_them(checkout: Checkout) -> None:
    for names in (("series",), ("tools", "overlay"), ()):
        checkout.tools("test", *names, "--", "-k", "x", code=2)


def test_a_job_waits_for_another_that_holds_the_build_folder(
    checkout: Checkout,
) -> None:
    """A user is refused instead, and told at once."""
    command = [sys.executable, "-m", "tools", "--project", checkout.project.root]
    lock = checkout.project.build / ".lock"
    with checkout.project.lock():
        assert checkout.cli("status").returncode == 1
        waiting = subprocess.Popen(
            [*command, "status"],
            cwd=REPOSITORY,
            env=os.environ | {LOCK_WAIT: "3600"},
            stdout=subprocess.DEVNULL,
        )
        while not has_open(waiting.pid, lock):
            assert waiting.poll() is None
            time.sleep(0.01)
        time.sleep(1.5)  # a user waits one second
    assert waiting.wait() == 0


def has_open(pid: int, file: Path) -> bool:
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any(link.resolve() == file for link in links)
