"""The demo's verdict on a recorded run of both servers, and what feeds it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.inside.probe import count_runs
from tools.measure import demo
from tools.measure.demo import (
    Claim,
    Comparison,
    Held,
    Measured,
    Probe,
    Reply,
    Result,
    Scenario,
)

# Written by the demo on two cores, with real servers of both backends.
RECORDED = Path(__file__).parent / "testdata" / "demo.json"


def measured(data: dict) -> Measured:
    return Measured(
        tuple(
            Reply(**(reply | {"tokens": tuple(reply["tokens"])}))
            for reply in data["replies"]
        ),
        tuple(Held(**held) for held in data["held"]),
        data["preemptions"],
        data["seconds"],
    )


@pytest.fixture
def result() -> Result:
    comparisons = []
    for row in json.loads(RECORDED.read_text())["scenarios"]:
        claim = Claim(row["claim"]) if row["claim"] else None
        prompts = ((1,),) * row["requests"]
        scenario = Scenario(row["scenario"], prompts, row["max_tokens"], claim)
        comparisons.append(
            Comparison(scenario, measured(row["paged"]), measured(row["tagma"]))
        )
    return Result({"paged": 10.0, "tagma": 10.0}, tuple(comparisons))


def with_tagma(result: Result, claim: Claim, **changes: object) -> Result:
    """Return the result with tagma's values changed in the claim's first scenario."""
    index = [c.scenario.claim for c in result.comparisons].index(claim)
    old = result.comparisons[index]
    new = replace(old, tagma=replace(old.tagma, **changes))
    rest = result.comparisons
    return replace(result, comparisons=(*rest[:index], new, *rest[index + 1 :]))


def test_equal_tokens_and_met_claims_are_done(result: Result) -> None:
    assert result.problems == ()
    assert result.outcome is Outcome.DONE
    assert {c.scenario.claim for c in result.comparisons} == {None, *Claim}


def test_one_other_token_is_different_and_is_named(result: Result) -> None:
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


def test_a_shorter_answer_is_different(result: Result) -> None:
    reply = result.comparisons[1].tagma.replies[0]
    cut = replace(reply, tokens=reply.tokens[:-1])
    changed = with_tagma(result, Claim.CHUNKED, replies=(cut,))
    assert changed.outcome is Outcome.DIFFERENT
    assert "token 24: paged" in changed.problems[0]
    assert "tagma (ended)" in changed.problems[0]


def uncached(result: Result, claim: Claim, cached_tokens: int) -> tuple[Reply, ...]:
    found = next(c for c in result.comparisons if c.scenario.claim is claim)
    return tuple(replace(r, cached_tokens=cached_tokens) for r in found.tagma.replies)


def test_a_repeat_without_a_prefix_hit_fails(result: Result) -> None:
    replies = uncached(result, Claim.PREFIX_HIT, 0)
    changed = with_tagma(result, Claim.PREFIX_HIT, replies=replies)
    assert changed.outcome is Outcome.DIFFERENT
    assert changed.problems == (
        "the same again, tagma: no token came from the prefix cache",
    )


def test_a_long_prompt_from_the_cache_was_not_chunked(result: Result) -> None:
    replies = uncached(result, Claim.CHUNKED, 768)
    changed = with_tagma(result, Claim.CHUNKED, replies=replies)
    assert changed.problems == (
        "long prompt, tagma: 768 tokens came from the prefix cache",
    )


def test_a_pool_without_preemption_fails(result: Result) -> None:
    changed = with_tagma(result, Claim.PREEMPTED, preemptions=0)
    assert changed.outcome is Outcome.DIFFERENT
    assert changed.problems == ("pool too small, tagma: no request was preempted",)


def test_streams_one_after_the_other_fail(result: Result) -> None:
    found = next(c for c in result.comparisons if c.scenario.claim is Claim.CONCURRENT)
    replies = tuple(
        replace(reply, first_s=float(index), end_s=index + 0.5)
        for index, reply in enumerate(found.tagma.replies)
    )
    changed = with_tagma(result, Claim.CONCURRENT, replies=replies)
    assert changed.problems == (
        "8 streams, tagma: the streams ran one after the other",
    )


def test_ranges_that_were_not_recorded_fail(result: Result) -> None:
    changed = with_tagma(result, Claim.CHUNKED, held=())
    assert changed.outcome is Outcome.DIFFERENT
    assert "only 0 releases" in changed.problems[0]


def test_each_preemption_adds_a_release(result: Result) -> None:
    found = next(c for c in result.comparisons if c.scenario.claim is Claim.PREEMPTED)
    for one in (found.paged, found.tagma):
        assert len(one.held) == len(one.replies) + one.preemptions


def test_the_json_holds_what_the_verdict_needs(result: Result) -> None:
    rows = json.loads(json.dumps(result.to_data()))["scenarios"]
    for row, comparison in zip(rows, result.comparisons, strict=True):
        assert measured(row["paged"]) == comparison.paged
        assert measured(row["tagma"]) == comparison.tagma


@pytest.mark.parametrize(
    ("blocks", "runs"),
    [([], 0), ([7], 1), ([3, 4, 5], 1), ([5, 4, 3], 3), ([1, 2, 9, 10, 4], 3)],
)
def test_runs_are_maximal_contiguous_stretches(blocks: list[int], runs: int) -> None:
    assert count_runs(blocks) == runs


def pages(folder: Path, count: int, words: int) -> list[Path]:
    made = [folder / f"{index:02}.md" for index in range(count)]
    for index, page in enumerate(made):
        page.write_text(f"w{index} " * words)
    return made


def tokenize(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def test_the_scenarios_fit_the_pool_as_they_claim(tmp_path: Path) -> None:
    scenarios = {
        s.name: s for s in demo.make_scenarios(pages(tmp_path, 25, 900), tokenize)
    }
    usable = demo.BLOCKS - 1

    def blocks(scenario: Scenario, generated: int) -> int:
        return sum(
            -(-(len(prompt) + generated) // demo.BLOCK_SIZE)
            for prompt in scenario.prompts
        )

    for scenario in scenarios.values():
        most = max(len(prompt) for prompt in scenario.prompts)
        assert most + scenario.max_tokens <= demo.MODEL_TOKENS
    small = scenarios["pool too small"]
    count = len(small.prompts)
    admitted = usable * count // blocks(small, 0)
    # Half of the requests are enough, so late ones do not matter.
    assert 2 <= admitted <= count // 2
    assert admitted * blocks(small, small.max_tokens) > usable * count
    streams = scenarios["8 streams"]
    assert blocks(streams, streams.max_tokens) <= usable
    long, shared = scenarios["long prompt"].prompts[0], scenarios["shared prefix"]
    assert scenarios["the same again"].prompts == (long,)
    common = next(i for i, t in enumerate(shared.prompts[0]) if t != long[i])
    assert 0 < common < len(shared.prompts[0]) and common % demo.BLOCK_SIZE == 0
    assert len(long) > demo.BATCHED_TOKENS >= len(scenarios["short prompt"].prompts[0])


def test_too_little_documentation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no further page of 128 tokens"):
        demo.make_scenarios(pages(tmp_path, 1, 900), tokenize)


METRICS = """\
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tagma-tiny"} 2.0
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="tagma-tiny"} 1.795978982903573e+09
vllm:cache_config_info{block_size="32",kv_cache_backend="tagma",num_gpu_blocks="64"} 1.0
"""


def test_values_of_the_servers_metrics() -> None:
    assert demo.preemptions(METRICS) == 2
    assert demo.backend_of(METRICS) == "tagma"
    assert demo.backend_of("# nothing\n") == "unknown"


def test_the_write_path_is_read_from_the_log() -> None:
    line = "(EngineCore pid=7) INFO 11-29 [x.py:9] KV cache write path: tagma, slot …"
    assert demo.write_path_of(f"INFO ready\n{line}\n") == "tagma"
    assert demo.write_path_of("INFO ready\n") == "paged"


SCHEDULER = """\
class Manager:
    def get_block_ids(self, request_id):
        return ([4, 5, 9] if request_id == "a" else [],)


class Scheduler:
    def __init__(self):
        self.kv_cache_manager, self.given_back = Manager(), []

    def _free_request_blocks(self, request):
        self.given_back.append(request.request_id)
"""

USE = """\
from importlib.metadata import entry_points
from types import SimpleNamespace
from vllm.v1.core.sched.scheduler import Scheduler

for _ in range(2):
    for plugin in entry_points(group="vllm.general_plugins"):
        if plugin.name == "tagma_probe":
            plugin.load()()
scheduler = Scheduler()
for name in "aba":
    scheduler._free_request_blocks(SimpleNamespace(request_id=name))
assert scheduler.given_back == ["a", "b", "a"], scheduler.given_back
"""


def test_the_plugin_is_found_and_counts_each_release_once(tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm" / "v1" / "core" / "sched"
    package.mkdir(parents=True)
    (package / "scheduler.py").write_text(SCHEDULER)
    probe = Probe(tmp_path / "probe")
    probe.install()
    env = probe.environment({"PYTHONPATH": str(tmp_path / "site")})
    assert probe.take() == ()
    subprocess.run([sys.executable, "-c", USE], env=env, check=True)
    assert probe.take() == (Held("a", 3, 2), Held("a", 3, 2))
    assert probe.take() == ()
