"""Cases and what they measure."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from tools.replay.case import Synthetic
from tools.replay.case_result import CaseResult
from tools.replay.experiment import BASELINES, Worker
from tools.replay.tagma import Engine
from tools.replay.workload import WORKLOADS

POLICIES = (*BASELINES, "tagma")


@pytest.fixture
def run(engine: Path) -> Callable[..., CaseResult]:
    def run(policy: str, seed: int = 0, cached: bool = True) -> CaseResult:
        case = Synthetic(WORKLOADS[0], cached, 16, 0.7, policy, seed, 8, 4)
        return Worker({"tagma": Engine(engine)})(case)

    return run


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_determines_every_count(
    run: Callable[..., CaseResult], policy: str
) -> None:
    def counts(seed: int) -> dict[str, float]:
        return asdict(run(policy, seed)) | {"seconds": 0, "seed": 0}

    assert counts(3) == counts(3)
    assert counts(3) != counts(4)


def test_the_engine_holds_requests_in_fewer_runs_than_paged(
    run: Callable[..., CaseResult],
) -> None:
    for cached in (False, True):
        ours, paged = run("tagma", cached=cached), run("paged", cached=cached)
        assert ours.runs_mean < paged.runs_mean


@pytest.mark.parametrize("cached", [False, True])
def test_the_engine_keeps_and_evicts_what_paged_does(
    run: Callable[..., CaseResult], cached: bool
) -> None:
    ours, paged = run("tagma", cached=cached), run("paged", cached=cached)
    assert ours.hit_tokens == paged.hit_tokens
    assert ours.preemptions == paged.preemptions
    assert (ours.evicted_blocks, ours.removed) == (paged.evicted_blocks, paged.removed)
    assert paged.evicted_blocks > 0 or not cached
