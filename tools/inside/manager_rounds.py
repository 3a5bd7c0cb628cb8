"""Rounds of the manager alone: admit, decode, hit, free."""

import os
from time import thread_time_ns

from vllm.v1.request import RequestStatus

from tools.inside.pool import make_manager, require
from tools.inside.request import make_request, random_hashes
from tools.inside.rounds import Round, settle
from tools.inside.setting import BLOCK_SIZE, DECODE_PROMPT, DECODING


def admit_and_free(
    name: str, num_tokens: int, repeat: int, caching: bool, backend: str
) -> Round:
    """Admit `repeat` prompts, then free them; by prompt."""
    manager = make_manager(backend, caching)

    def measure() -> dict[str, float]:
        hasher = random_hashes() if caching else None
        first, *requests = [make_request(num_tokens, hasher) for _ in range(1 + repeat)]
        settle()
        allocate, free = manager.allocate_slots, manager.free
        allocate(first, num_tokens)  # not timed: the collector has cooled the caches
        free(first)
        begin = thread_time_ns()
        for request in requests:
            allocate(request, num_tokens)
        admitted = thread_time_ns()
        for request in requests:
            (ids,) = manager.get_block_ids(request.request_id)
            if len(ids) != num_tokens // BLOCK_SIZE:
                raise RuntimeError("a prompt was not admitted")
            if backend == "tagma" and not caching and ids[-1] - ids[0] != len(ids) - 1:
                raise RuntimeError("a prompt has several ranges in an empty pool")
        freeing = thread_time_ns()
        for request in requests:
            free(request)
        freed = thread_time_ns()
        return {
            f"admit {name}": (admitted - begin) / repeat,
            f"free {name}": (freed - freeing) / repeat,
        }

    return measure


def decode(name: str, caching: bool, backend: str) -> Round:
    """Give each of many requests one more token; by step of all requests."""
    manager = make_manager(backend, caching)
    hasher = random_hashes() if caching else None
    requests = []
    for index in range(DECODING):
        # Their blocks are not full in the same step.
        request = make_request(DECODE_PROMPT - index % BLOCK_SIZE, hasher)
        require(manager.allocate_slots(request, request.num_tokens))
        request.num_computed_tokens = request.num_tokens
        request.status = RequestStatus.RUNNING
        request.append_output_token_ids(1)
        requests.append(request)

    def measure() -> dict[str, float]:
        settle()
        allocate, spent = manager.allocate_slots, 0
        for _ in range(BLOCK_SIZE):
            begin = thread_time_ns()
            for request in requests:
                allocate(request, 1)
            spent += thread_time_ns() - begin
            for request in requests:
                request.num_computed_tokens += 1
                request.append_output_token_ids(1)
        require(allocate(requests[-1], 1))
        return {name: spent / BLOCK_SIZE}

    return measure


def hit(name: str, num_tokens: int, repeat: int, backend: str) -> Round:
    """Look a cached prefix up and admit the request that has it; by request."""
    manager = make_manager(backend, caching=True)
    known = [os.urandom(32) for _ in range(num_tokens // BLOCK_SIZE)]
    first = make_request(num_tokens, random_hashes(known))
    require(manager.allocate_slots(first, num_tokens))
    manager.free(first)

    def measure() -> dict[str, float]:
        requests = [
            make_request(num_tokens + BLOCK_SIZE, random_hashes(known))
            for _ in range(repeat)
        ]
        settle()
        spent = 0
        for request in requests:
            begin = thread_time_ns()
            blocks, num_hits, _ = manager.get_computed_blocks(request)
            manager.allocate_slots(request, BLOCK_SIZE, num_hits, blocks)
            spent += thread_time_ns() - begin
            if num_hits != num_tokens:
                raise RuntimeError(f"{num_hits} tokens hit instead of {num_tokens}")
            manager.free(request)
        return {name: spent / repeat}

    return measure
