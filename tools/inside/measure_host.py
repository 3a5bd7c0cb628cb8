"""Time what the KV cache manager costs the scheduler's thread, paged beside tagma.

Usage: python measure_host.py ROUNDS FILE

`tools.measure.host_bench` runs it in the serving environment; it imports nothing of the
tools. Both managers are the real ones and take turns in every round. Times are CPU
time of this thread, so that neighbours on a busy machine do not count. FILE gets one
JSON object with nanoseconds per operation, round and backend.
"""

import gc
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from time import thread_time_ns
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.tagma_kv_cache_manager import TagmaKVCacheManager
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

MANAGERS = {"paged": KVCacheManager, "tagma": TagmaKVCacheManager}
BLOCK_SIZE = 16
POOL_TOKENS = 1 << 20
POOL_BLOCKS = POOL_TOKENS // BLOCK_SIZE + 1  # and the null block
MAX_TOKENS = 1 << 18
DECODING = 512  # requests
DECODE_PROMPT = 1024  # tokens
K = 1024

# One round of a scenario: nanoseconds by operation.
Round = Callable[[], dict[str, float]]
Hasher = Callable[[Request], list[bytes]]

_numbers = count()
_rng = random.Random(0)


def random_hashes(known: Sequence[bytes] = ()) -> Hasher:
    """Return a block hasher of no cost: `known` hashes first, then new ones."""

    def hash_blocks(request: Request) -> list[bytes]:
        begin, end = len(request.block_hashes), request.num_tokens // BLOCK_SIZE
        return [
            known[index] if index < len(known) else os.urandom(32)
            for index in range(begin, end)
        ]

    return hash_blocks


def make_request(num_tokens: int, hasher: Hasher | None = None) -> Request:
    """Return a request of so many prompt tokens."""
    return Request(
        request_id=f"request-{next(_numbers)}",
        prompt_token_ids=[1] * num_tokens,
        sampling_params=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
        pooling_params=None,
        block_hasher=hasher,
    )


def make_cache_config() -> KVCacheConfig:
    """Return the pool: one full-attention group."""
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(POOL_BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])


def make_manager(backend: str, caching: bool) -> KVCacheManager:
    """Return a manager whose pool has served for a while and is free again."""
    manager = MANAGERS[backend](
        make_cache_config(),
        max_model_len=MAX_TOKENS,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        max_in_flight_tokens=8192,
        enable_caching=caching,
    )
    use_up(manager, random_hashes() if caching else None)
    return manager


def use_up(manager: KVCacheManager, hasher: Hasher | None) -> None:
    """Fill the pool as serving does, then free it out of order.

    Requests get half of their blocks at once and take turns in getting the rest,
    so that paged's queue of free blocks is as mixed as after long serving. With a
    hasher, every block is then cached.
    """
    rng = random.Random(0)

    def compute(request: Request, num_blocks: int) -> None:
        require(manager.allocate_slots(request, num_blocks * BLOCK_SIZE))
        request.num_computed_tokens += num_blocks * BLOCK_SIZE

    requests: list[Request] = []
    while free := manager.block_pool.get_num_free_blocks():
        turns = []
        for _ in range(DECODING):
            size = min(free, rng.randrange(1, 256))
            if not size:
                break
            free -= size
            requests.append(make_request(size * BLOCK_SIZE, hasher))
            compute(requests[-1], size - size // 2)
            turns += [requests[-1]] * (size // 2)
        rng.shuffle(turns)
        for request in turns:
            compute(request, 1)
    rng.shuffle(requests)
    for request in requests:
        manager.free(request)


def require(blocks: Any) -> None:
    """Stop if an allocation failed: nothing here asks for too much."""
    if blocks is None:
        raise RuntimeError("the pool is too small")


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


def schedule_decode(name: str, model: Path, caching: bool, backend: str) -> Round:
    """The whole of `Scheduler.schedule()` in a decode step of many requests."""
    scheduler = make_scheduler(model, caching, backend)
    use_up(scheduler.kv_cache_manager, random_hashes() if caching else None)
    hasher = random_hashes() if caching else None
    for index in range(DECODING):
        scheduler.add_request(make_request(DECODE_PROMPT - index % BLOCK_SIZE, hasher))
    step(scheduler)

    def measure() -> dict[str, float]:
        settle()
        times = [step(scheduler) for _ in range(BLOCK_SIZE)]
        if len(scheduler.running) != DECODING:
            raise RuntimeError("a request is not running")
        return {name: sum(times) / BLOCK_SIZE}

    return measure


def schedule_prompt(name: str, num_tokens: int, model: Path, backend: str) -> Round:
    """The whole of `Scheduler.schedule()` when it admits one long prompt."""
    scheduler = make_scheduler(model, True, backend)
    use_up(scheduler.kv_cache_manager, random_hashes())

    def measure() -> dict[str, float]:
        request = make_request(num_tokens, random_hashes())
        scheduler.add_request(request)
        settle()
        spent = step(scheduler)
        if request.num_computed_tokens != num_tokens:
            raise RuntimeError("the prompt was not admitted as a whole")
        scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        step(scheduler)  # tells the worker
        return {name: spent}

    return measure


def make_scheduler(model: Path, caching: bool, backend: str) -> Scheduler:
    """Return upstream's scheduler over the pool, without a worker."""
    config = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        async_scheduling=False,
        max_model_len=MAX_TOKENS,
        max_num_seqs=DECODING,
        max_num_batched_tokens=POOL_TOKENS,
        enable_prefix_caching=caching,
        kv_cache_backend=backend,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = POOL_BLOCKS
    return Scheduler(
        vllm_config=config,
        kv_cache_config=make_cache_config(),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=True,
    )


def step(scheduler: Scheduler) -> int:
    """Schedule once and answer as a worker; return the time of `schedule()`."""
    begin = thread_time_ns()
    output = scheduler.schedule()
    spent = thread_time_ns() - begin
    scheduler.update_from_output(output, answer(output))
    return spent


def answer(output: SchedulerOutput) -> ModelRunnerOutput:
    """Return one token for each request: all prompts are scheduled as a whole."""
    ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={req_id: index for index, req_id in enumerate(ids)},
        sampled_token_ids=[[1] for _ in ids],
    )


def write_model(folder: Path) -> None:
    """Write the configuration of a model; the scheduler needs no weights."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 128,
        "max_position_embeddings": MAX_TOKENS,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))


def hash_prompt(name: str, num_tokens: int) -> Round:
    """Hash the blocks of a prompt with vLLM's default function."""
    hash_blocks = get_request_block_hasher(BLOCK_SIZE, sha256)

    def measure() -> dict[str, float]:
        request = make_request(num_tokens)
        settle()
        begin = thread_time_ns()
        hash_blocks(request)
        return {name: thread_time_ns() - begin}

    return measure


def hash_decode(name: str) -> Round:
    """Append one token to each of many requests and hash the blocks that get full."""
    hash_blocks = get_request_block_hasher(BLOCK_SIZE, sha256)
    requests = [
        make_request(DECODE_PROMPT - index % BLOCK_SIZE, hash_blocks)
        for index in range(DECODING)
    ]

    def measure() -> dict[str, float]:
        settle()
        begin = thread_time_ns()
        for _ in range(BLOCK_SIZE):
            for request in requests:
                request.append_output_token_ids(1)
        return {name: (thread_time_ns() - begin) / BLOCK_SIZE}

    return measure


def settle() -> None:
    """Collect garbage now, and leave out of later collections what has survived."""
    gc.collect()
    gc.freeze()


def scenarios(model: Path) -> Iterator[Callable[[str], Round]]:
    """Yield everything that both backends do."""
    off, on = "caching off", "caching on"
    decode_name = f"decode step of {DECODING} requests"
    full = f"{on}, every free block cached"
    yield partial(decode, f"{decode_name}, {off}", False)
    yield partial(decode, f"{decode_name}, {on}", True)
    yield partial(admit_and_free, f"128K tokens, {off}", 128 * K, 7, False)
    yield partial(admit_and_free, f"4K tokens, {off}", 4 * K, 64, False)
    yield partial(admit_and_free, f"1K tokens, {off}", K, 64, False)
    yield partial(admit_and_free, f"128K tokens, {full}", 128 * K, 2, True)
    yield partial(hit, "prefix hit of 64K tokens", 64 * K, 4)
    yield partial(
        schedule_decode, f"schedule() of the {decode_name}, {off}", model, False
    )
    yield partial(
        schedule_decode, f"schedule() of the {decode_name}, {on}", model, True
    )
    yield partial(
        schedule_prompt, f"schedule() that admits 128K tokens, {full}", 128 * K, model
    )


def main(rounds: int, file: Path) -> None:
    """Measure everything and write it."""
    init_none_hash(sha256)
    samples: dict[tuple[str, str], list[float]] = {}

    def record(backend: str, measured: dict[str, float]) -> None:
        for name, ns in measured.items():
            samples.setdefault((name, backend), []).append(ns)

    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        for scenario in scenarios(Path(folder)):
            sides = {backend: scenario(backend) for backend in MANAGERS}
            for measure in sides.values():
                measure()  # a first one that does not count
            for number in range(rounds):
                for backend in sorted(sides, reverse=bool(number % 2)):
                    record(backend, sides[backend]())
            print("scenario", flush=True)
    for measure in (
        hash_decode(f"hash in a decode step of {DECODING} requests"),
        hash_prompt("hash 128K tokens", 128 * K),
    ):
        measure()
        for _ in range(rounds):
            record("either", measure())
        print("scenario", flush=True)
    result = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "block_size": BLOCK_SIZE,
        "pool_tokens": POOL_TOKENS,
        "timings": [
            {"operation": name, "backend": backend, "rounds_ns": values}
            for (name, backend), values in samples.items()
        ],
    }
    file.write_text(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
