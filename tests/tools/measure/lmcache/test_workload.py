"""What servers with LMCache are asked."""

from tools.measure.lmcache.workload import (
    BLOCK_SIZE,
    BLOCKS,
    CHUNK_TOKENS,
    MAX_TOKENS,
    make_rounds,
)

ROUNDS = {each.name: each for each in make_rounds()}


def test_every_run_asks_the_same() -> None:
    assert make_rounds() == make_rounds()


def test_requests_fit_the_model_and_crowds_do_not_fit_the_pool() -> None:
    for each in ROUNDS.values():
        for ask in each.asks:
            assert len(ask.prompt) + ask.max_tokens <= MAX_TOKENS
    for name in ("preempted", "preempted, after a reset"):
        each = ROUNDS[name]
        tokens = sum(len(ask.prompt) + ask.max_tokens for ask in each.asks)
        assert each.at_once == len(each.asks) and tokens > BLOCKS * BLOCK_SIZE


def test_what_was_asked_before_a_reset_can_be_loaded_after_it() -> None:
    for name, each in ROUNDS.items():
        if not each.resets:
            continue
        asked = [
            prior
            for prior in list(ROUNDS.values())[: list(ROUNDS).index(name)]
            if prior.asks == each.asks
        ]
        assert asked, name
        assert all(len(ask.prompt) > CHUNK_TOKENS for ask in each.asks)


def test_a_part_of_the_crowd_leaves() -> None:
    cuts = [ask.cut for ask in ROUNDS["aborted"].asks]
    assert None in cuts and any(cuts)
