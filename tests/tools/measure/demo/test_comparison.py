"""The demo's verdict on a recorded run of both servers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tools.base.outcome import Outcome
from tools.measure.demo.comparison import ScenarioComparison
from tools.measure.demo.measured import (
    CopyingStep,
    HeldBlocks,
    Measured,
    Recorded,
    Reply,
)
from tools.measure.demo.result import DemoResult, PairResult
from tools.measure.demo.scenarios import Claim, Scenario

# Written by the demo on two cores, with real servers of both backends.
RECORDED = Path(__file__).parent / "testdata" / "demo.json"


def measured(data: dict) -> Measured:
    return Measured(
        tuple(
            Reply(**(reply | {"tokens": tuple(reply["tokens"])}))
            for reply in data["replies"]
        ),
        Recorded(
            tuple(HeldBlocks(**held) for held in data["recorded"]["held"]),
            tuple(CopyingStep(**step) for step in data["recorded"]["steps"]),
        ),
        data["preemptions"],
        data["loaded_tokens"],
        data["block_copies"],
        data["seconds"],
    )


def comparison(row: dict) -> ScenarioComparison:
    scenario = Scenario(
        row["scenario"],
        ((1,),) * row["requests"],
        row["max_tokens"],
        Claim(row["claim"]) if row["claim"] else None,
        in_turn=row["in_turn"],
    )
    return ScenarioComparison(scenario, measured(row["paged"]), measured(row["tagma"]))


@pytest.fixture
def result() -> PairResult:
    """The pair of servers with one worker each, which ran all scenarios."""
    return read_pairs()[0]


def read_pairs() -> list[PairResult]:
    return [
        PairResult(
            pair["name"],
            pair["start_s"],
            tuple(map(comparison, pair["scenarios"])),
        )
        for pair in json.loads(RECORDED.read_text())["pairs"]
    ]


def index_of(result: PairResult, claim: Claim) -> int:
    """Return the place of the claim's first scenario."""
    return [c.scenario.claim for c in result.comparisons].index(claim)


def with_tagma(result: PairResult, claim: Claim, **changes: object) -> PairResult:
    """Return the result with tagma's values changed in the claim's first scenario."""
    index = index_of(result, claim)
    old = result.comparisons[index]
    new = replace(old, tagma=replace(old.tagma, **changes))
    rest = result.comparisons
    return replace(result, comparisons=(*rest[:index], new, *rest[index + 1 :]))


def with_copies(result: PairResult, claim: Claim, copies: int) -> PairResult:
    """Return the result with so many copies, which the workers got as well."""
    recorded = result.comparisons[index_of(result, claim)].tagma.recorded
    steps = (CopyingStep(copies, 1),) if copies else ()
    return with_tagma(
        result, claim, block_copies=copies, recorded=replace(recorded, steps=steps)
    )


def with_runs(result: PairResult, claim: Claim, runs: int) -> PairResult:
    """Return the result with all requests holding so many runs."""
    recorded = result.comparisons[index_of(result, claim)].tagma.recorded
    held = tuple(replace(one, runs=runs) for one in recorded.held)
    return with_tagma(result, claim, recorded=replace(recorded, held=held))


def test_equal_tokens_and_met_claims_are_done(result: PairResult) -> None:
    done = DemoResult(tuple(read_pairs()))
    assert done.problems == ()
    assert done.outcome is Outcome.DONE
    assert {c.scenario.claim for c in result.comparisons} == {
        None,
        *set(Claim) - {Claim.LOADED},
    }


def test_two_workers_move_blocks_and_preempt() -> None:
    (pair,) = (pair for pair in read_pairs() if pair.name == "TP 2")
    claims = {c.scenario.claim for c in pair.comparisons}
    assert claims >= {Claim.MOVED, Claim.GATHERED, Claim.PREEMPTED}
    assert pair.copies_ahead
    still = replace(pair, comparisons=())
    assert still.problems == ("TP 2: tagma copied no block in any scenario",)


def test_blocks_are_loaded_while_others_move() -> None:
    (pair,) = (pair for pair in read_pairs() if pair.name == "offloading")
    claims = {c.scenario.claim for c in pair.comparisons}
    assert claims >= {Claim.MOVED, Claim.LOADED, Claim.PREEMPTED}
    nothing = with_tagma(pair, Claim.LOADED, loaded_tokens=0)
    loaded = pair.comparisons[index_of(pair, Claim.LOADED)].paged.loaded_tokens
    assert nothing.problems == (
        "offloading: evicted before, tagma: no token was loaded",
        f"offloading: evicted before, loaded tokens: paged {loaded}, tagma 0",
    )


@pytest.mark.parametrize("claim", [Claim.MOVED, Claim.GATHERED, Claim.PREEMPTED])
def test_a_scenario_that_should_move_blocks_and_moves_none_fails(
    result: PairResult, claim: Claim
) -> None:
    changed = with_copies(result, claim, 0)
    name = result.comparisons[index_of(result, claim)].scenario.name
    assert changed.problems == (f"{name}, tagma: no block was copied",)
    assert DemoResult((changed,)).outcome is Outcome.DIFFERENT


@pytest.mark.parametrize("claim", [Claim.MOVED, Claim.GATHERED])
def test_blocks_that_moved_and_still_lie_apart_fail(
    result: PairResult, claim: Claim
) -> None:
    name = result.comparisons[index_of(result, claim)].scenario.name
    assert with_runs(result, claim, 3).problems == (
        f"{name}, tagma: a request held its blocks in 3 ranges",
    )


def test_a_prefix_that_nobody_extended_elsewhere_fails(result: PairResult) -> None:
    assert with_runs(result, Claim.SHARED, 1).problems == (
        "prefix held twice, tagma: no request extended the prefix elsewhere",
    )


def test_a_demo_without_any_copy_fails(result: PairResult) -> None:
    none = tuple(
        replace(
            c,
            scenario=replace(c.scenario, claim=None),
            tagma=replace(
                c.tagma, block_copies=0, recorded=replace(c.tagma.recorded, steps=())
            ),
        )
        for c in result.comparisons
    )
    changed = replace(result, comparisons=none)
    assert changed.problems == ("tagma copied no block in any scenario",)


def test_copies_that_no_step_under_way_saw_fail(result: PairResult) -> None:
    none = tuple(
        replace(
            c,
            tagma=replace(
                c.tagma,
                recorded=replace(
                    c.tagma.recorded,
                    steps=tuple(
                        replace(step, steps_under_way=0)
                        for step in c.tagma.recorded.steps
                    ),
                ),
            ),
        )
        for c in result.comparisons
    )
    changed = replace(result, comparisons=none)
    assert changed.problems == ("no block was copied while another step was under way",)


def test_copies_that_the_workers_did_not_get_fail(result: PairResult) -> None:
    copies = result.block_copies
    (problem,) = with_tagma(result, Claim.CHUNKED, block_copies=1).problems
    assert problem == f"/metrics counts {copies + 1} copies, workers got {copies}"


def test_another_hit_fails_where_no_timing_decides(result: PairResult) -> None:
    again = result.comparisons[index_of(result, Claim.PREFIX_HIT)]
    fewer = uncached(result, Claim.PREFIX_HIT, 736)
    changed = with_tagma(result, Claim.PREFIX_HIT, replies=fewer)
    assert again.tagma.cached_tokens == 768
    assert changed.problems == (
        "the same again, prefix hits: paged [768], tagma [736]",
    )
    changed = with_tagma(result, Claim.PREFIX_HIT, preemptions=1)
    assert changed.problems == ("the same again, preemptions: paged 0, tagma 1",)


def test_another_preemption_is_no_problem_where_timing_decides(
    result: PairResult,
) -> None:
    assert with_tagma(result, Claim.PREEMPTED, preemptions=7).problems == ()


def test_one_other_token_is_different_and_is_named(result: PairResult) -> None:
    chunked = next(
        c for c in result.comparisons if c.scenario.claim is Claim.CHUNKED
    ).tagma
    reply = chunked.replies[0]
    tokens = (*reply.tokens[:5], 9999, *reply.tokens[6:])
    changed = with_tagma(
        result, Claim.CHUNKED, replies=(replace(reply, tokens=tokens),)
    )
    (problem,) = changed.problems
    assert problem == (
        f"long prompt, request 1, token 6: paged {reply.tokens[5]}, tagma 9999"
    )


def test_a_shorter_answer_is_different(result: PairResult) -> None:
    reply = result.comparisons[1].tagma.replies[0]
    cut = replace(reply, tokens=reply.tokens[:-1])
    changed = with_tagma(result, Claim.CHUNKED, replies=(cut,))
    assert "token 24: paged" in changed.problems[0]
    assert "tagma (ended)" in changed.problems[0]


def uncached(result: PairResult, claim: Claim, cached_tokens: int) -> tuple[Reply, ...]:
    found = next(c for c in result.comparisons if c.scenario.claim is claim)
    return tuple(replace(r, cached_tokens=cached_tokens) for r in found.tagma.replies)


def test_a_repeat_without_a_prefix_hit_fails(result: PairResult) -> None:
    replies = uncached(result, Claim.PREFIX_HIT, 0)
    changed = with_tagma(result, Claim.PREFIX_HIT, replies=replies)
    assert changed.problems == (
        "the same again, tagma: request 1 found nothing in the prefix cache",
        "the same again, prefix hits: paged [768], tagma [0]",
    )


def test_a_long_prompt_from_the_cache_was_not_chunked(result: PairResult) -> None:
    replies = uncached(result, Claim.CHUNKED, 768)
    changed = with_tagma(result, Claim.CHUNKED, replies=replies)
    assert changed.problems == (
        "long prompt, tagma: 768 tokens came from the prefix cache",
        "long prompt, prefix hits: paged [0], tagma [768]",
    )


def test_a_pool_without_preemption_fails(result: PairResult) -> None:
    changed = with_tagma(result, Claim.PREEMPTED, preemptions=0)
    assert changed.problems == ("pool too small, tagma: no request was preempted",)


def test_streams_one_after_the_other_fail(result: PairResult) -> None:
    found = next(c for c in result.comparisons if c.scenario.claim is Claim.CONCURRENT)
    replies = tuple(
        replace(reply, first_s=float(index), end_s=index + 0.5)
        for index, reply in enumerate(found.tagma.replies)
    )
    changed = with_tagma(result, Claim.CONCURRENT, replies=replies)
    assert changed.problems == (
        "8 streams, tagma: the streams ran one after the other",
    )


def test_requests_in_turn_that_ran_at_once_fail(result: PairResult) -> None:
    found = result.comparisons[index_of(result, Claim.GATHERED)]
    replies = tuple(replace(r, first_s=0.0, end_s=1.0) for r in found.tagma.replies)
    changed = with_tagma(result, Claim.GATHERED, replies=replies)
    assert changed.problems == ("hits in pieces, tagma: requests ran at once",)


def test_ranges_that_were_not_recorded_fail(result: PairResult) -> None:
    changed = with_tagma(result, Claim.CHUNKED, recorded=Recorded((), ()))
    assert "only 0 releases" in changed.problems[0]


def test_each_preemption_adds_a_release(result: PairResult) -> None:
    found = next(c for c in result.comparisons if c.scenario.claim is Claim.PREEMPTED)
    for one in (found.paged, found.tagma):
        assert len(one.held) == len(one.replies) + one.preemptions


def test_the_json_holds_what_the_verdict_needs(result: PairResult) -> None:
    (pair,) = json.loads(json.dumps(DemoResult((result,)).to_data()))["pairs"]
    for row, was in zip(pair["scenarios"], result.comparisons, strict=True):
        again = comparison(row)
        assert (again.paged, again.tagma) == (was.paged, was.tagma)
        assert again.scenario.is_determined == was.scenario.is_determined
