"""The demo's verdict on a recorded run of both servers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tools.base.outcome import Outcome
from tools.measure.demo.comparison import DemoResult, ScenarioComparison
from tools.measure.demo.measured import HeldBlocks, Measured, Reply
from tools.measure.demo.scenarios import Claim, Scenario

# Written by the demo on two cores, with real servers of both backends.
RECORDED = Path(__file__).parent / "testdata" / "demo.json"


def measured(data: dict) -> Measured:
    return Measured(
        tuple(
            Reply(**(reply | {"tokens": tuple(reply["tokens"])}))
            for reply in data["replies"]
        ),
        tuple(HeldBlocks(**held) for held in data["held"]),
        data["preemptions"],
        data["seconds"],
    )


@pytest.fixture
def result() -> DemoResult:
    comparisons = []
    for row in json.loads(RECORDED.read_text())["scenarios"]:
        claim = Claim(row["claim"]) if row["claim"] else None
        prompts = ((1,),) * row["requests"]
        scenario = Scenario(row["scenario"], prompts, row["max_tokens"], claim)
        comparisons.append(
            ScenarioComparison(scenario, measured(row["paged"]), measured(row["tagma"]))
        )
    return DemoResult({"paged": 10.0, "tagma": 10.0}, tuple(comparisons))


def with_tagma(result: DemoResult, claim: Claim, **changes: object) -> DemoResult:
    """Return the result with tagma's values changed in the claim's first scenario."""
    index = [c.scenario.claim for c in result.comparisons].index(claim)
    old = result.comparisons[index]
    new = replace(old, tagma=replace(old.tagma, **changes))
    rest = result.comparisons
    return replace(result, comparisons=(*rest[:index], new, *rest[index + 1 :]))


def test_equal_tokens_and_met_claims_are_done(result: DemoResult) -> None:
    assert result.problems == ()
    assert result.outcome is Outcome.DONE
    assert {c.scenario.claim for c in result.comparisons} == {None, *Claim}


def test_one_other_token_is_different_and_is_named(result: DemoResult) -> None:
    chunked = next(
        c for c in result.comparisons if c.scenario.claim is Claim.CHUNKED
    ).tagma
    reply = chunked.replies[0]
    tokens = (*reply.tokens[:5], 9999, *reply.tokens[6:])
    changed = with_tagma(
        result, Claim.CHUNKED, replies=(replace(reply, tokens=tokens),)
    )
    assert changed.outcome is Outcome.DIFFERENT
    (problem,) = changed.problems
    assert problem == (
        f"long prompt, request 1, token 6: paged {reply.tokens[5]}, tagma 9999"
    )


def test_a_shorter_answer_is_different(result: DemoResult) -> None:
    reply = result.comparisons[1].tagma.replies[0]
    cut = replace(reply, tokens=reply.tokens[:-1])
    changed = with_tagma(result, Claim.CHUNKED, replies=(cut,))
    assert changed.outcome is Outcome.DIFFERENT
    assert "token 24: paged" in changed.problems[0]
    assert "tagma (ended)" in changed.problems[0]


def uncached(result: DemoResult, claim: Claim, cached_tokens: int) -> tuple[Reply, ...]:
    found = next(c for c in result.comparisons if c.scenario.claim is claim)
    return tuple(replace(r, cached_tokens=cached_tokens) for r in found.tagma.replies)


def test_a_repeat_without_a_prefix_hit_fails(result: DemoResult) -> None:
    replies = uncached(result, Claim.PREFIX_HIT, 0)
    changed = with_tagma(result, Claim.PREFIX_HIT, replies=replies)
    assert changed.outcome is Outcome.DIFFERENT
    assert changed.problems == (
        "the same again, tagma: no token came from the prefix cache",
    )


def test_a_long_prompt_from_the_cache_was_not_chunked(result: DemoResult) -> None:
    replies = uncached(result, Claim.CHUNKED, 768)
    changed = with_tagma(result, Claim.CHUNKED, replies=replies)
    assert changed.problems == (
        "long prompt, tagma: 768 tokens came from the prefix cache",
    )


def test_a_pool_without_preemption_fails(result: DemoResult) -> None:
    changed = with_tagma(result, Claim.PREEMPTED, preemptions=0)
    assert changed.outcome is Outcome.DIFFERENT
    assert changed.problems == ("pool too small, tagma: no request was preempted",)


def test_streams_one_after_the_other_fail(result: DemoResult) -> None:
    found = next(c for c in result.comparisons if c.scenario.claim is Claim.CONCURRENT)
    replies = tuple(
        replace(reply, first_s=float(index), end_s=index + 0.5)
        for index, reply in enumerate(found.tagma.replies)
    )
    changed = with_tagma(result, Claim.CONCURRENT, replies=replies)
    assert changed.problems == (
        "8 streams, tagma: the streams ran one after the other",
    )


def test_ranges_that_were_not_recorded_fail(result: DemoResult) -> None:
    changed = with_tagma(result, Claim.CHUNKED, held=())
    assert changed.outcome is Outcome.DIFFERENT
    assert "only 0 releases" in changed.problems[0]


def test_each_preemption_adds_a_release(result: DemoResult) -> None:
    found = next(c for c in result.comparisons if c.scenario.claim is Claim.PREEMPTED)
    for one in (found.paged, found.tagma):
        assert len(one.held) == len(one.replies) + one.preemptions


def test_the_json_holds_what_the_verdict_needs(result: DemoResult) -> None:
    rows = json.loads(json.dumps(result.to_data()))["scenarios"]
    for row, comparison in zip(rows, result.comparisons, strict=True):
        assert measured(row["paged"]) == comparison.paged
        assert measured(row["tagma"]) == comparison.tagma
