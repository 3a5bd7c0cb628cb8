"""Requests for both pools, in the order in which they come."""

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby

from tools.replay.request import Request
from tools.replay.trace import Replay, Trace
from tools.replay.turn import Session, draw_turns, new_tokens
from tools.replay.workload import LogNormal, Workload

BLOCK_SIZE = 16
POOL_BLOCKS = 32_768
PROBES = (512, 8192, 32_768)
# Contexts of coding agents grow by the results of tools, as those of vLLM's issue
# 55434: most of a prompt is found from many earlier requests.
AGENTS = Workload(
    "agents",
    LogNormal(6144, 0.4, 16384),
    LogNormal(1200, 0.8, 8192),
    LogNormal(180, 0.7, 2048),
)
# The lengths of the simulation from which the goals are.
CONVERSATIONS = Workload(
    "conversations",
    LogNormal(1340, 1.1, 16384),
    LogNormal(1340, 1.1, 16384),
    LogNormal(200, 0.8, 8192),
)
_AGENT_TURNS = 40
# Sessions begin with one of six system prompts, of 256 to 1,536 tokens.
_SYSTEMS, _SYSTEM_TOKENS = 6, 256
_LONGEST = 98_304  # tokens of a session
_FIRST_CONTENT = 1 << 32  # block numbers that a session has for itself
_SYSTEM_CONTENT = 1 << 59
_PROBE_CONTENT = 1 << 60
# How often a pool's blocks are written before anything counts, and then again.
_TURNOVERS = 4
_PROBES_EACH = 8  # of each length


@dataclass(frozen=True)
class Stream:
    """Requests, and which of them are probes.

    Args:
        name: The workload's or the trace's.
        seed: Of the workload.
        requests: In order.
        probes: Tokens of those that are probes, prompts that nobody has sent before.
        warm_up: The number of the first request that counts.
    """

    name: str
    seed: int
    requests: tuple[Request, ...]
    probes: dict[int, int]
    warm_up: int

    def to_data(self) -> list[list[object]]:
        """Return what `inside.transfer_pools` takes."""
        return [
            [request.prompt_tokens, request.output_tokens, _runs(request.hashes)]
            for request in self.requests
        ]


def of_sessions(
    workload: Workload, seed: int, pool_blocks: int, probes: Sequence[int] = PROBES
) -> Stream:
    """Return the requests of sessions whose users come back after others.

    A follow-up comes when about as many requests came in between as fill the pool, so
    that some prompts are found and some are lost. Its length does not depend on what
    the pools do.

    Args:
        workload: The lengths.
        seed: Of the random numbers.
        pool_blocks: Blocks of a pool; they say how many requests there are.
        probes: Lengths of prompts to send between them, in tokens.
    """
    rng = random.Random(f"{workload.name} {seed}")
    tokens = _TURNOVERS * pool_blocks * BLOCK_SIZE
    turns = _turns(workload, rng, pool_blocks * BLOCK_SIZE)
    before, after = _take(turns, tokens), _take(turns, tokens)
    mixed, numbers = _with_probes(after, probes)
    probed = {len(before) + number: length for number, length in numbers.items()}
    return Stream(workload.name, seed, (*before, *mixed), probed, len(before))


def of_trace(trace: Trace) -> Stream:
    """Return the requests of a trace; its first tenth is warm-up."""
    replay = Replay(trace, BLOCK_SIZE)
    requests = []
    while (request := replay.next(0)) is not None:
        requests.append(request)
    return Stream(trace.name, 0, tuple(requests), {}, len(requests) // 10)


def _turns(
    workload: Workload, rng: random.Random, pool_tokens: int
) -> Iterator[Request]:
    """Yield requests without end."""
    idle: deque[tuple[int, Session]] = deque()
    # An agent comes back at once, a user when half a pool has been sent by others.
    pause = pool_tokens // (8 if workload is AGENTS else 2)
    sent = numbers = 0
    while True:
        if idle and idle[0][0] + pause <= sent and rng.random() < 0.9:
            _, session = idle.popleft()
        else:
            turns = _AGENT_TURNS if workload is AGENTS else draw_turns(rng)
            session = Session(numbers, turns, rng)
            session.history = _system_tokens(session)
            numbers += 1
        prompt = session.history + new_tokens(workload, session)
        output = min(workload.output.draw(rng), pool_tokens // 4)
        prompt = min(prompt, pool_tokens // 4)
        tokens = prompt + output
        yield Request(prompt, output, _contents(session, tokens), session.number)
        sent += tokens
        session.history = tokens
        session.turns -= 1
        if session.turns and session.history < min(_LONGEST, pool_tokens // 4):
            idle.append((sent, session))


def _system_tokens(session: Session) -> int:
    return _SYSTEM_TOKENS * (1 + session.number % _SYSTEMS)


def _contents(session: Session, tokens: int) -> list[int]:
    """Return the numbers of a session's blocks: the system prompt, then its own."""
    shared = min(_system_tokens(session), tokens) // BLOCK_SIZE
    system = _SYSTEM_CONTENT + session.number % _SYSTEMS * _FIRST_CONTENT
    first = session.number * _FIRST_CONTENT
    own = range(first + shared, first + tokens // BLOCK_SIZE)
    return [*range(system, system + shared), *own]


def _take(turns: Iterator[Request], tokens: int) -> list[Request]:
    """Take requests of so many tokens in all."""
    taken = []
    while tokens > 0:
        taken.append(next(turns))
        tokens -= taken[-1].prompt_tokens + taken[-1].output_tokens
    return taken


def _with_probes(
    requests: Sequence[Request], lengths: Sequence[int]
) -> tuple[list[Request], dict[int, int]]:
    """Return requests with probes between them, and the probes by their numbers."""
    every = max(1, len(requests) // (_PROBES_EACH * max(1, len(lengths))))
    sizes = cycle(lengths)
    probes: dict[int, int] = {}
    mixed: list[Request] = []
    for number, request in enumerate(requests):
        mixed.append(request)
        if lengths and (number + 1) % every == 0:
            tokens = next(sizes)
            first = _PROBE_CONTENT + len(probes) * _FIRST_CONTENT
            content = range(first, first + tokens // BLOCK_SIZE)
            probes[len(mixed)] = tokens
            mixed.append(Request(tokens, 1, content))
    return mixed, probes


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return consecutive numbers as pairs of the first one and how many."""
    indexed = enumerate(numbers)
    runs = [
        [number for _, number in group]
        for _, group in groupby(indexed, lambda pair: pair[1] - pair[0])
    ]
    return [(run[0], len(run)) for run in runs]
