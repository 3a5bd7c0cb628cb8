"""The verdict on rounds as real servers gave them, each broken in one way."""

from dataclasses import replace

import pytest

from tools.base.outcome import Outcome
from tools.measure.greedy import Ask, Tokens
from tools.measure.lmcache.node import Counts
from tools.measure.lmcache.result import LMCacheResult, RoundResult, SettingResult
from tools.measure.lmcache.setting import ALONE, CONTROL, FURTHER, PAGED, TAGMA, Setting
from tools.measure.lmcache.workload import Round

ASK = Ask((5, 6, 7), 3)
RIGHT, WRONG = (1, 2, 3), (1, 9, 3)
SERIAL = RoundResult(Round("again", (ASK,)), (RIGHT,), Counts(64, 128, 0), 0.0)
CROWD = RoundResult(Round("crowd", (ASK,), at_once=9), (RIGHT,), Counts(0, 0, 2), 0.0)


def of(setting: Setting, *changed: RoundResult) -> SettingResult:
    """Return a setting's rounds, of which some are others."""
    rounds = {each.round.name: each for each in (SERIAL, CROWD, *changed)}
    return SettingResult(setting, tuple(rounds.values()))


def answered(tokens: Tokens) -> RoundResult:
    return replace(SERIAL, answers=(tokens,))


def result(*changed: SettingResult) -> LMCacheResult:
    alone = of(ALONE, replace(SERIAL, counts=Counts(64)))
    control = SettingResult(CONTROL, (answered(WRONG),))
    settings = {each.setting.name: each for each in (of(PAGED), of(TAGMA), control)}
    settings |= {each.setting.name: each for each in changed}
    return LMCacheResult(alone, tuple(settings.values()))


def test_equal_tokens_and_loads_are_done() -> None:
    assert result().problems == ()
    assert result().outcome is Outcome.DONE


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (of(PAGED, answered(WRONG)), "token 2 is 9, a single server's is 2"),
        (of(TAGMA, answered(WRONG)), "token 2 is 9, a single server's is 2"),
        (of(TAGMA, replace(SERIAL, held=0.1)), "again: 10.0% of the blocks are held"),
        (of(TAGMA, replace(CROWD, counts=Counts())), "nothing was preempted"),
        (
            of(TAGMA, replace(SERIAL, counts=Counts(64, 96))),
            "paged found 64 tokens itself and 128 in LMCache, tagma 64 and 96",
        ),
        (
            of(FURTHER[-1], replace(SERIAL, counts=Counts(192))),
            "nothing was loaded from LMCache",
        ),
        (
            SettingResult(CONTROL, (SERIAL,)),
            "loads into wrong blocks do not show in any token",
        ),
    ],
    ids=lambda value: "" if isinstance(value, SettingResult) else value,
)
def test_what_is_wrong_fails_the_demo(changed: SettingResult, problem: str) -> None:
    bad = result(changed)
    assert bad.outcome is Outcome.DIFFERENT
    assert any(problem in found for found in bad.problems), bad.problems


def test_loads_of_a_crowd_depend_on_time_and_are_not_compared() -> None:
    assert result(of(TAGMA, replace(CROWD, counts=Counts(64, 64, 2)))).problems == ()
