"""Requests of synthetic sessions, endless and seeded."""

import heapq
import random
from collections import deque
from itertools import count

from tools.replay.request import Request
from tools.replay.setting import Setting, token_budget
from tools.replay.turn import Session, Turn, draw_turns, new_tokens, sample_turns
from tools.replay.workload import Workload

_SESSION_BLOCKS = 1 << 32  # no session has more
_MOST_CONCURRENCY = 1.25


class Sessions:
    """Requests of sessions, as many at once as the pool can hold.

    Each turn's prompt is all that was said before and something new. A user thinks
    for about as long as keeps the pool filled: what is not live is cached, and what
    is cached may be asked for again. Without a prefix cache each session has one
    turn, and the next one waits already. The first requests are as if they had
    begun before: at any turn, and at any token of its answer.

    Args:
        workload: The lengths.
        setting: The pool.
        concurrency: Requests that are to run at once.
        prefix_cache: Whether contents are cached.
        seed: Of the random numbers.
    """

    ended = False

    def __init__(
        self,
        workload: Workload,
        setting: Setting,
        concurrency: int,
        prefix_cache: bool,
        seed: int,
    ) -> None:
        self._workload = workload
        self._seed = seed
        self._numbers = count()
        self._pool_tokens = setting.num_blocks * setting.block_size
        self._most_tokens = self._pool_tokens // 2
        self._block_size = setting.block_size
        self._prefix_cache = prefix_cache
        idle = 1 / setting.live_share - 1
        # One in ten idle sessions waits for blocks instead of its user.
        self._think_steps = 0.9 * idle * workload.output.mean
        self._asleep: list[tuple[int, int, Session]] = []
        self._live: dict[int, Session] = {}
        rng = random.Random(seed)
        begun = sample_turns(workload, prefix_cache, seed)
        # Longer turns are more often met in progress.
        met = rng.choices(
            begun,
            [turn.output_tokens for turn in begun],
            k=round(concurrency / setting.live_share) if prefix_cache else concurrency,
        )
        self._met = deque(met)
        for turn in met if prefix_cache else ():
            self._wake_at(0, self._new_session(turn))

    def next(self, step: int) -> Request | None:
        """Return the request of a session whose user has thought enough."""
        if not self._prefix_cache:
            return self._ask(self._new_session())
        if not self._asleep or self._asleep[0][0] > step:
            return None
        return self._ask(heapq.heappop(self._asleep)[2])

    def finished(self, request: Request, step: int) -> None:
        """Let the user think about the answer, or a new user come."""
        session = self._live.pop(request.session)
        if not self._prefix_cache:
            return
        session.history = request.prompt_tokens + request.output_tokens
        session.turns -= 1
        if not session.turns or session.history > self._most_tokens:
            session = self._new_session()
        think = session.rng.expovariate(1.0) * self._think_steps
        self._wake_at(step + 1 + int(think), session)

    def _new_session(self, met: "Turn | None" = None) -> Session:
        number = next(self._numbers)
        # Its own numbers: what a session asks does not depend on the policy.
        rng = random.Random(f"{self._seed} {number}")
        if met:
            return Session(number, met.turns, rng, met.history)
        turns = draw_turns(rng) if self._prefix_cache else 1
        return Session(number, turns, rng)

    def _wake_at(self, step: int, session: Session) -> None:
        heapq.heappush(self._asleep, (step, session.number, session))

    def _ask(self, session: Session) -> Request:
        if self._met:
            turn = self._met.popleft()
            past = session.rng.randrange(turn.output_tokens)
            prompt, output = turn.prompt_tokens + past, turn.output_tokens - past
        else:
            prompt = session.history + new_tokens(self._workload, session)
            output = self._workload.output.draw(session.rng)
        # One that the pool can not hold would be preempted for ever.
        output = min(output, self._pool_tokens // 2)
        prompt = min(prompt, self._pool_tokens - output)
        self._live[session.number] = session
        hashes = range(0)
        if self._prefix_cache:
            first = session.number * _SESSION_BLOCKS
            hashes = range(first, first + (prompt + output) // self._block_size)
        return Request(prompt, output, hashes, session.number)


def setting_for(
    workload: Workload,
    concurrency: int,
    prefix_cache: bool,
    block_size: int,
    live_share: float,
    turnovers: int,
) -> Setting:
    """Return the pool in which `concurrency` requests hold the live share.

    Args:
        workload: The lengths.
        concurrency: Requests that run at once.
        prefix_cache: Whether contents are cached.
        block_size: Tokens per block.
        live_share: The part of the pool that running requests hold.
        turnovers: How often the running requests are replaced; a third of the
            time is warm-up.
    """
    turns = sample_turns(workload, prefix_cache, seed=0)
    # Averaged over time, so turns count by the steps that they take.
    tokens = sum(
        turn.output_tokens * (turn.prompt_tokens + turn.output_tokens / 2)
        for turn in turns
    ) / sum(turn.output_tokens for turn in turns)
    output_tokens = workload.output.mean
    steps = int(turnovers * output_tokens)
    prompt_tokens = sum(turn.prompt_tokens for turn in turns) / len(turns)
    return Setting(
        int(concurrency * (tokens / block_size + 0.5) / live_share),
        block_size,
        live_share,
        steps,
        steps // 3,
        token_budget=token_budget(concurrency, prompt_tokens, output_tokens),
        max_requests=int(_MOST_CONCURRENCY * concurrency),
    )
