"""The fuzzer's tool: what it reads from libFuzzer, and what it needs."""

import os
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.measure.fuzzer import Fuzzer

# As clang 14 prints it.
QUIET = """\
#64	INITED cov: 1367 ft: 5820 corp: 723/59Kb exec/s: 32 rss: 78Mb
#128	pulse  cov: 1370 ft: 5821 corp: 724/59Kb lim: 1024 exec/s: 64 rss: 78Mb
Done 200 runs in 2 second(s)
stat::number_of_executed_units: 200
stat::average_exec_per_sec:     100
"""
CRASH = """\
#64	INITED cov: 1367 ft: 5820 corp: 723/59Kb exec/s: 32 rss: 78Mb
step 12: 552: not so: engine_.num_free_blocks() == 40
==7== ERROR: libFuzzer: deadly signal
artifact_prefix='/x/'; Test unit written to /x/crash-0123
"""


@pytest.fixture
def make_fuzzer(tmp_path: Path):
    """Return a maker of targets that print what libFuzzer would."""

    def make(output: str, status: int) -> Fuzzer:
        (tmp_path / "output").write_text(output)
        program = tmp_path / "target"
        program.write_text(f"#!/bin/sh\ncat {tmp_path}/output >&2\nexit {status}\n")
        program.chmod(0o755)
        return Fuzzer(program, tmp_path / "seeds", tmp_path / "x", tmp_path / "log")

    return make


def test_a_quiet_run_gives_its_numbers(make_fuzzer):
    fuzzed = make_fuzzer(QUIET, 0).run(2)
    assert (fuzzed.runs, fuzzed.edges, fuzzed.features) == (200, 1370, 5821)
    assert (fuzzed.inputs, fuzzed.crash, fuzzed.findings) == (724, None, ())


def test_a_broken_promise_names_its_input_and_what_was_broken(make_fuzzer):
    fuzzed = make_fuzzer(CRASH, 77).run(2)
    assert fuzzed.crash == "/x/crash-0123"
    assert fuzzed.findings[0].startswith("step 12: ")


def test_a_target_that_stops_for_another_reason_is_an_error(make_fuzzer):
    with pytest.raises(ToolError) as error:
        make_fuzzer("no such folder\n", 1).run(2)
    assert error.value.details == ("no such folder",)


def test_missing_clang_is_named_with_its_packages(checkout, monkeypatch):
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(ToolError, match=r"clang\+\+") as error:
        Fuzzer.build(checkout.project)
    assert error.value.outcome is Outcome.MISSING_TOOL
    assert "libclang-rt" in error.value.next_steps[0]
