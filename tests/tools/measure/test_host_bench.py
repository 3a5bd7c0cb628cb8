"""The host benchmark: how goals are judged. `ci/host` runs the real program."""

import json

import pytest

from tools.measure.host_bench import HostBenchmark, HostTiming, Verdict

OPERATIONS = (
    "decode step of 512 requests, caching off",
    "decode step of 512 requests, caching on",
    "admit 128K tokens, caching off",
    "free 128K tokens, caching off",
    "admit 4K tokens, caching off",
    "admit 1K tokens, caching off",
    "free 1K tokens, caching off",
    "admit 128K tokens, caching on, every free block cached",
    "free 128K tokens, caching on, every free block cached",
    "prefix hit of 64K tokens",
)
RATIO = "prefix hit of 64K tokens: tagma / paged"
GROWTH = "admit 128K / admit 4K, caching off, one range: tagma"


def benchmark(**tagma: tuple[float, ...]) -> HostBenchmark:
    """A run in which paged always took 100 ns, and tagma too unless named."""
    return HostBenchmark.from_data(
        {
            "machine": "x86_64",
            "timings": [
                {
                    "operation": operation,
                    "backend": backend,
                    "rounds_ns": [100.0, 100.0, 100.0]
                    if backend == "paged"
                    else tagma.get(operation.split()[-1], (100.0,) * 3),
                }
                for operation in OPERATIONS
                for backend in ("paged", "tagma")
            ]
            + [
                {
                    "operation": "hash 128K tokens",
                    "backend": "either",
                    "rounds_ns": [5.0],
                }
            ],
        }
    )


def test_a_ratio_is_between_medians():
    goals = {goal.name: goal for goal in benchmark(tokens=(1.0, 2.0, 90.0)).goals()}
    assert goals[RATIO].value == 0.02


@pytest.mark.parametrize(
    ("ns", "verdict"),
    [
        (5.0, Verdict.AIM),
        (5.1, Verdict.MUST),
        (15.0, Verdict.MUST),
        (15.1, Verdict.MISSED),
    ],
)
def test_a_bound_is_kept_when_it_is_reached(ns, verdict):
    goals = {goal.name: goal for goal in benchmark(tokens=(ns,) * 3).goals()}
    assert goals[RATIO].verdict is verdict


def test_growth_compares_prompts_on_tagma_alone():
    measured = benchmark()
    slow = HostTiming("admit 128K tokens, caching off", "tagma", (900.0,))
    others = [t for t in measured.timings if t.operation != slow.operation]
    paged = HostTiming(slow.operation, "paged", (1.0,))
    goals = HostBenchmark([*others, slow, paged], {}).goals()
    growth = {goal.name: goal for goal in goals}[GROWTH]
    assert (growth.value, growth.verdict) == (9.0, Verdict.MISSED)


def test_a_goal_that_was_not_measured_is_an_error():
    measured = benchmark()
    with pytest.raises(KeyError):
        HostBenchmark(measured.timings[:-3], {}).goals()


def test_what_is_no_managers_work_has_no_ratio():
    assert benchmark().ratio("hash 128K tokens") is None


def test_the_values_survive_json():
    measured = benchmark()
    data = json.loads(json.dumps(measured.to_data()))
    assert HostBenchmark.from_data(data).timings == measured.timings
    assert data["machine"] == "x86_64"


def test_fewer_rounds_than_nine_are_a_usage_error(checkout):
    done = checkout.cli("bench-host", "--rounds", "8")
    assert done.returncode == 2
    assert "--rounds" in done.stderr
