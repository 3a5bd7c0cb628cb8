"""How the engine's goals are judged."""

from tools.measure.engine_goals import EngineGoal, goals
from tools.measure.engine_timings import EngineTiming, EngineTimings


def timing(scenario: str, live: int, implementation: str, ns: float) -> EngineTiming:
    return EngineTiming(
        scenario, live, 1, implementation, 10, 2, ns + 2, 1.0, ns + 1, ns
    )


def goals_of(*timings: EngineTiming) -> dict[str, EngineGoal]:
    return {goal.name: goal for goal in goals(EngineTimings(timings))}


def test_a_goal_compares_the_fastest_rounds_of_the_same_scenario():
    judged = goals_of(
        timing("allocate+release", 0, "tagma", 60.0),
        timing("allocate+release", 0, "std::map", 100.0),
        timing("allocate+release", 512, "tagma", 40.0),
        timing("allocate+release", 512, "std::map", 100.0),
        timing("allocate+release", 4096, "tagma", 80.1),
    )
    alone = judged["allocate+release, alone: tagma / std::map"]
    assert (alone.value, alone.verdict) == (0.6, "met")
    live = judged["allocate+release, 512 live: tagma / std::map"]
    assert (live.value, live.verdict) == (0.4, "missed")
    assert judged["allocate+release: 4,096 / 512 live"].verdict == "missed"
    assert judged["grow in place, alone: tagma / std::map"].verdict == "not measured"


def test_what_a_call_from_python_costs_is_per_call():
    judged = goals_of(
        timing("allocate+release", 0, "tagma", 40.0),
        timing("allocate+release", 0, "Python", 200.0),
    )
    assert judged["allocate+release: a call from Python over C++"].value == 80.0
