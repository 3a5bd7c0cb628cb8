"""Time what the KV cache manager costs the scheduler's thread, paged beside tagma.

Usage: python -m tools.inside.measure_host ROUNDS FILE

`tools.measure.host_bench` runs it in the serving environment. Both managers are the
real ones and take turns in every round. Times are CPU time of this thread, so that
neighbours on a busy machine do not count. FILE gets one JSON object with nanoseconds
per operation, round and backend.
"""

import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from tools.inside.hash_rounds import hash_decode, hash_prompt
from tools.inside.manager_rounds import admit_and_free, decode, hit
from tools.inside.pool import MANAGERS
from tools.inside.rounds import Round
from tools.inside.scheduler_rounds import schedule_decode, schedule_prompt
from tools.inside.setting import BLOCK_SIZE, DECODING, MAX_TOKENS, POOL_TOKENS
from tools.inside.small_model import write_configuration

K = 1024


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
        write_configuration(Path(folder), MAX_TOKENS)
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
