"""The engine's benchmark: the real programs, and how goals are judged."""

import json
import subprocess
import sysconfig

import pytest
from checkout import REPOSITORY

from tools.base.project import Project
from tools.measure import engine_bench
from tools.measure.engine_bench import EngineBenchmark
from tools.measure.engine_timings import EngineTiming

LAYOUT = {
    "layers": 32,
    "blocks": 65536,
    "tokens_per_block": 32,
    "bytes_per_token": 2048,
}


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> EngineBenchmark:
    """A short run of what is in csrc_tagma/."""
    folder = tmp_path_factory.mktemp("bench")
    extension = folder / "tagma.abi3.so"
    subprocess.run(
        [
            *("c++", "-std=c++17", "-O0", "-shared", "-fPIC"),
            *("-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}"),
            *(REPOSITORY / "csrc_tagma" / "tagma_bindings.cpp", "-o", extension),
        ],
        check=True,
    )
    project = Project(REPOSITORY, folder / "build", folder)
    return engine_bench.measure(project, extension, rounds=2)


def test_every_goal_is_measured(benchmark):
    verdicts = {goal.name: goal.verdict for goal in benchmark.goals()}
    assert set(verdicts.values()) <= {"met", "missed"}, verdicts
    assert len(verdicts) == len(benchmark.goals())


def test_the_layout_is_that_of_the_reference_run(benchmark):
    assert benchmark.layout == LAYOUT


def test_all_yardsticks_are_in_the_same_run(benchmark):
    names = {timing.implementation for timing in benchmark.timings.all}
    assert names == {
        "tagma",
        "std::map",
        "std::unordered_map",
        "malloc",
        "paged gather",
        "Python",
    }
    assert all(
        t.mean_ns >= t.fastest_ns > 0 and t.stddev_ns >= 0
        for t in benchmark.timings.all
    )


def test_the_values_survive_json(benchmark):
    data = json.loads(json.dumps(benchmark.to_data()))
    assert [
        EngineTiming(**fields) for fields in data["timings"]
    ] == benchmark.timings.all


def test_wrong_rounds_are_a_usage_error(checkout):
    done = checkout.cli("bench-engine", "--rounds", "1")
    assert done.returncode == 2
    assert "--rounds" in done.stderr
