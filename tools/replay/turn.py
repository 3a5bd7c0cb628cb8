"""Turns of sessions, drawn from a workload."""

import random
from dataclasses import dataclass
from functools import lru_cache

from tools.replay.workload import Workload

_MEAN_FOLLOW_UPS = 5.0
_SAMPLES = 4000


@dataclass
class Session:
    """A user's session: turns left, random numbers, tokens said before."""

    number: int
    turns: int
    rng: random.Random
    history: int = 0


@dataclass(frozen=True)
class Turn:
    """One request of a session."""

    prompt_tokens: int
    output_tokens: int
    history: int
    turns: int  # of its session, from this one on


@lru_cache
def sample_turns(workload: Workload, prefix_cache: bool, seed: int) -> tuple[Turn, ...]:
    """Return the turns of many sessions."""
    rng = random.Random(seed)
    turns = []
    for _ in range(_SAMPLES):
        session = Session(0, draw_turns(rng) if prefix_cache else 1, rng)
        while session.turns:
            prompt = session.history + new_tokens(workload, session)
            output = workload.output.draw(rng)
            turns.append(Turn(prompt, output, session.history, session.turns))
            session.history = prompt + output
            session.turns -= 1
    return tuple(turns)


def draw_turns(rng: random.Random) -> int:
    """Return how many turns a session has."""
    return 1 + int(rng.expovariate(1 / _MEAN_FOLLOW_UPS))


def new_tokens(workload: Workload, session: Session) -> int:
    """Return what a session's user adds to its history."""
    return (workload.follow_up if session.history else workload.prompt).draw(
        session.rng
    )
