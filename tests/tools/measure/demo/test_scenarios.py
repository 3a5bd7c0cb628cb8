"""What the demo asks: prompts of real pages that do to the pool what they claim."""

from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.measure.demo.scenarios import (
    BATCHED_TOKENS,
    BLOCK_SIZE,
    BLOCKS,
    MODEL_TOKENS,
    Claim,
    Scenario,
    make_scenarios,
    make_short_list,
)


def pages(folder: Path, count: int, words: int) -> list[Path]:
    made = [folder / f"{index:02}.md" for index in range(count)]
    for index, page in enumerate(made):
        page.write_text(f"w{index} " * words)
    return made


def tokenize(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def test_the_scenarios_fit_the_pool_as_they_claim(tmp_path: Path) -> None:
    scenarios = {s.name: s for s in make_scenarios(pages(tmp_path, 40, 900), tokenize)}
    usable = BLOCKS - 1

    def blocks(scenario: Scenario, generated: int) -> int:
        return sum(
            -(-(len(prompt) + generated) // BLOCK_SIZE) for prompt in scenario.prompts
        )

    for scenario in scenarios.values():
        most = max(len(prompt) for prompt in scenario.prompts)
        assert most + scenario.max_tokens <= MODEL_TOKENS
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
    assert 0 < common < len(shared.prompts[0]) and common % BLOCK_SIZE == 0
    assert len(long) > BATCHED_TOKENS >= len(scenarios["short prompt"].prompts[0])


@pytest.mark.parametrize("make", [make_scenarios, make_short_list])
def test_blocks_that_stay_cached_lie_in_the_way(tmp_path: Path, make) -> None:
    made = make(pages(tmp_path, 40, 900), tokenize)
    filling, room, again = made[made.index(next(s for s in made if s.in_turn)) :][:3]
    prompts, kept = filling.prompts[:6], filling.prompts[6:]
    cached = [
        (len(prompt) + filling.max_tokens - 1) // BLOCK_SIZE for prompt in prompts
    ]
    others = BLOCKS - 1 - sum(cached)
    needed = -(-(len(room.prompts[0]) + room.max_tokens) // BLOCK_SIZE)
    # What is evicted: what was there before, then every second one of the prompts.
    assert kept == prompts[1::2] == again.prompts
    assert room.claim is Claim.MOVED
    assert others + cached[0] < needed <= others + sum(cached[::2])


@pytest.mark.parametrize("make", [make_scenarios, make_short_list])
def test_hits_in_pieces_go_on_behind_what_two_requests_held(
    tmp_path: Path, make
) -> None:
    scenarios = {s.claim: s for s in make(pages(tmp_path, 40, 900), tokenize)}
    two, longer = scenarios[Claim.SHARED], scenarios[Claim.GATHERED]
    assert not two.in_turn and longer.in_turn
    common = sum(a == b for a, b in zip(*two.prompts, strict=True))
    assert common % BLOCK_SIZE == 0 < common < len(two.prompts[0])
    for before, after in zip(two.prompts, longer.prompts, strict=True):
        assert after[: len(before)] == before and len(after) > len(before)


def test_too_little_documentation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no further page of 128 tokens"):
        make_scenarios(pages(tmp_path, 1, 900), tokenize)
