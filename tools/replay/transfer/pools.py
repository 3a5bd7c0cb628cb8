"""Both pools under a stream of requests, with the real managers of one backend."""

import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools import inside
from tools.base import process
from tools.base.project import CHECKOUT
from tools.replay.transfer.stream import Stream
from tools.serve.host import Host

PAGED, TAGMA = "paged", "tagma"

Run = tuple[int, int, int]  # source, target, how many blocks


@dataclass(frozen=True)
class PoolSetting:
    """How the pools are used, by paged and by tagma alike.

    Args:
        num_blocks: Blocks of each.
        prefill_share: Part of the prefill pool that requests may hold.
        decode_share: Part of the decode pool.
        token_budget: Prompt tokens that are computed in a step.
        max_prefilling: Prompts that are computed at once.
        tokens_a_step: Tokens that a request decodes in a step.
        hold_steps: The prefill side gives blocks back after one to so many steps.
    """

    num_blocks: int
    prefill_share: float = 0.85
    decode_share: float = 0.97
    token_budget: int = 8192
    max_prefilling: int = 16
    tokens_a_step: int = 4
    hold_steps: int = 90


@dataclass(frozen=True)
class Transfer:
    """What went from one pool to the other for a request.

    Args:
        number: Of the request in its stream.
        blocks: How many, those left out that the decode side had.
        prefill_runs: Contiguous stretches of them in the prefill pool.
        decode_runs: In the decode pool.
        runs: On both sides: descriptors of a layer.
    """

    number: int
    blocks: int
    prefill_runs: int
    decode_runs: int
    runs: int


@dataclass(frozen=True)
class Side:
    """What one pool's manager did.

    Args:
        hit_tokens: Found in its prefix cache.
        moved_blocks: Copied within the pool to make room.
        thread_seconds: CPU time of its calls.
        free_blocks: Of its pool, at the end.
    """

    hit_tokens: int
    moved_blocks: int
    thread_seconds: float
    free_blocks: int


@dataclass(frozen=True)
class PoolRun:
    """What a backend did with a stream.

    Args:
        backend: "paged" or "tagma".
        stream: The requests.
        num_blocks: Blocks of each pool.
        transfers: In order, those of the warm-up too.
        kept: The runs of some, by the number of the request.
        preempted: Requests that lost their blocks.
        prefill: What the prefill side did.
        decode: What the decode side did.
    """

    backend: str
    stream: Stream
    num_blocks: int
    transfers: tuple[Transfer, ...]
    kept: dict[int, list[Run]]
    preempted: int
    prefill: Side
    decode: Side

    @property
    def num_held(self) -> int:
        """Blocks that are still held at the end, on either side."""
        return sum(
            self.num_blocks - side.free_blocks for side in (self.prefill, self.decode)
        )

    @property
    def counted(self) -> list[Transfer]:
        """Those that count: no warm-up, no probes, nothing that was all there."""
        first, probes = self.stream.warm_up, self.stream.probes
        return [
            transfer
            for transfer in self.transfers
            if transfer.number >= first
            and transfer.number not in probes
            and transfer.blocks
        ]

    def probes(self, tokens: int) -> list[Transfer]:
        """Return the transfers of the probes of a length."""
        lengths = self.stream.probes
        return [each for each in self.transfers if lengths.get(each.number) == tokens]

    @classmethod
    def of(
        cls, backend: str, stream: Stream, num_blocks: int, data: dict[str, Any]
    ) -> "PoolRun":
        """Read what the program wrote."""
        kept = {
            int(number): [(a, b, count) for a, b, count in runs]
            for number, runs in data["kept"].items()
        }
        return cls(
            backend,
            stream,
            num_blocks,
            tuple(Transfer(*values) for values in data["transfers"]),
            kept,
            data["preempted"],
            Side(**data["prefill"]),
            Side(**data["decode"]),
        )


def run(
    host: Host,
    setting: PoolSetting,
    backend: str,
    stream: Stream,
    kept: Iterable[int],
) -> PoolRun:
    """Serve a stream with a backend's managers.

    Args:
        host: The serving environment.
        setting: How the pools are used.
        backend: "paged" or "tagma".
        stream: The requests.
        kept: Those whose runs are wanted.

    Raises:
        ToolError: The program failed.
    """
    given = asdict(setting) | {"backend": backend, "kept": list(kept)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pools.json"
        file.write_text(json.dumps({"setting": given, "requests": stream.to_data()}))
        process.run(
            inside.command(host.python, "transfer_pools", file),
            cwd=CHECKOUT,
            env=host.neutral_environment() | {"VLLM_LOGGING_LEVEL": "ERROR"},
        )
        data = json.loads(file.read_text("utf-8"))
    return PoolRun.of(backend, stream, setting.num_blocks, data)
