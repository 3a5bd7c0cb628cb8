"""The simulated scheduler, and the requests that it gets."""

import random

from tools.replay.case import Synthetic
from tools.replay.paged import Paged
from tools.replay.request import Request
from tools.replay.setting import Setting
from tools.replay.simulator import Simulator
from tools.replay.workload import WORKLOADS


class Listed:
    """A source with a list of requests."""

    def __init__(self, *requests: Request) -> None:
        self.left = list(requests)
        self.done: list[tuple[int, int]] = []

    @property
    def ended(self) -> bool:
        return not self.left

    def next(self, step: int) -> Request | None:
        return self.left.pop(0) if self.left else None

    def finished(self, request: Request, step: int) -> None:
        self.done.append((request.session, step))


class Watched(Paged):
    """Paged that notes how many blocks each request gave back."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.given_back: list[int] = []

    def release(self, held) -> None:
        self.given_back.append(held.num_blocks)
        super().release(held)


def test_a_request_holds_the_blocks_of_its_tokens_but_the_last() -> None:
    rng = random.Random(7)
    requests = [
        Request(rng.randint(1, 200), rng.randint(1, 100), session=i) for i in range(50)
    ]
    policy, source = Watched(1000), Listed(*requests)
    Simulator(policy, source, Setting(1000, 16, 1.0, token_budget=64)).run()
    order = [requests[number] for number, _ in source.done]
    expected = [-(-(r.prompt_tokens + r.output_tokens - 1) // 16) for r in order]
    assert policy.given_back == expected
    assert len(order) == 50


def test_a_prompt_takes_its_chunks_and_each_token_a_step() -> None:
    # 100 tokens at 40 a step are computed in steps 0 to 2, which gives the first
    # token; four more follow.
    source = Listed(Request(100, 5))
    Simulator(Paged(20), source, Setting(20, 16, 1.0, token_budget=40)).run()
    assert source.done == [(0, 7)]


def test_the_last_request_is_preempted_and_finds_its_blocks_again() -> None:
    requests = [
        Request(48, 60, range(number * 100, number * 100 + 6), number)
        for number in range(2)
    ]
    source = Listed(*requests)
    counts = Simulator(Paged(10), source, Setting(10, 16, 1.0)).run()
    assert counts.preemptions == 1
    assert [number for number, _ in source.done] == [0, 1]
    assert counts.admissions == 2
    # Its own blocks, found after the preemption, are no hits of a new prompt.
    assert counts.hit_tokens == 0


def test_a_shared_prefix_is_hit_but_its_last_token_is_computed() -> None:
    same = [Request(64, 1, range(4), number) for number in range(2)]
    counts = Simulator(Paged(20), Listed(*same), Setting(20, 16, 1.0)).run()
    assert (counts.prompt_tokens, counts.hit_tokens) == (128, 48)


def test_requests_wait_while_the_live_share_is_used() -> None:
    source = Listed(*(Request(64, 10, session=i) for i in range(3)))
    Simulator(Paged(20), source, Setting(20, 16, 0.3)).run()
    ends = [step for _, step in source.done]
    assert ends == sorted(set(ends))  # one after the other


def test_a_request_beyond_a_small_pool_is_shortened() -> None:
    """Else it would be preempted and admitted again for ever."""
    workload = WORKLOADS[0]
    case = Synthetic(workload, True, 32, 0.9, "paged", 1, concurrency=1, turnovers=40)
    pool = case.setting.num_blocks * 32
    source = case.source()
    step, asked = 0, 0
    longest = 0
    while asked < 200:
        step += 1
        if request := source.next(step):
            longest = max(longest, request.prompt_tokens + request.output_tokens)
            source.finished(request, step)
            asked += 1
    assert longest == pool
