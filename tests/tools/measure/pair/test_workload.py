"""What a pair is asked: the same each time, with shared prefixes and cut answers."""

import pytest

from tools.measure.pair.workload import (
    BLOCK_SIZE,
    FULL,
    PROBES,
    QUICK,
    Size,
    make_workload,
    tokens_needed,
)

MODEL_TOKENS = 8192


@pytest.mark.parametrize("size", [FULL, QUICK])
def test_every_request_fits_the_model_and_the_pool(size: Size) -> None:
    workload = make_workload(range(tokens_needed(size)), size)
    for ask in workload.asks:
        tokens = len(ask.prompt) + ask.max_tokens
        assert tokens <= MODEL_TOKENS
        assert -(-tokens // BLOCK_SIZE) < size.blocks
    lengths = [len(ask.prompt) for ask in workload.probes]
    assert lengths == list(PROBES) * size.probes


def test_the_order_is_the_same_each_time_and_no_request_is_made_twice() -> None:
    text = range(tokens_needed(QUICK))
    one, other = make_workload(text, QUICK), make_workload(text, QUICK)
    assert one == other
    assert len(set(one.asks)) == len(one.asks)


def test_turns_repeat_what_came_before_and_some_answers_are_cut() -> None:
    workload = make_workload(range(tokens_needed(QUICK)), QUICK)
    talk = workload.ageing + workload.load
    assert len(talk) == QUICK.conversations * QUICK.turns
    prompts = [ask.prompt for ask in talk]
    later = [
        prompt
        for number, prompt in enumerate(prompts)
        if any(prompt[: len(early)] == early for early in prompts[:number])
    ]
    assert len(later) == QUICK.conversations * (QUICK.turns - 1)
    cut = [ask for ask in talk if ask.cut]
    assert cut and all(ask.cut < ask.max_tokens for ask in cut if ask.cut)


def test_probes_share_nothing_with_what_came_before() -> None:
    workload = make_workload(range(tokens_needed(QUICK)), QUICK)
    seen = {ask.prompt[0] for ask in workload.ageing + workload.load}
    assert not seen & {ask.prompt[0] for ask in workload.probes}
