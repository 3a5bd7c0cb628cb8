"""What the offloading benchmark runs: loads, pools and host memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.replay.offload.copies import CopySetting
from tools.replay.trace import Trace
from tools.replay.transfer import stream
from tools.replay.transfer.pools import PAGED, TAGMA, PoolSetting
from tools.replay.transfer.stream import AGENTS, CONVERSATIONS, Stream

SEEDS = 3
_BLOCKS, _QUICK_BLOCKS = 16_384, 2048
_SHARE = 0.9
# Blocks in host memory for each of the pool.
_CHUNKS = (1, 2)
_TENSORS, _ROUNDS = 32, 5
# Of a block in a tensor. A GPU copies small pages with Triton, which merges nothing.
_PAGE_BYTES, _GPU_PAGE_BYTES = 4096, 65536


@dataclass(frozen=True)
class OffloadPlan:
    """What the user chose.

    Args:
        trace: A recorded trace; None: only synthetic sessions.
        seeds: How many seeds to run these with.
        quick: A small pool.
    """

    trace: Path | None
    seeds: int
    quick: bool

    @property
    def setting(self) -> PoolSetting:
        """How the pool is used."""
        blocks = _QUICK_BLOCKS if self.quick else _BLOCKS
        return PoolSetting(blocks, prefill_share=_SHARE, decode_share=_SHARE)

    def memory(self, on_cpu: bool) -> CopySetting:
        """Return the memory of both sides, of which a transfer is made."""
        blocks = self.setting.num_blocks
        page = _PAGE_BYTES if on_cpu else _GPU_PAGE_BYTES
        return CopySetting(_TENSORS, page, blocks + 1, _CHUNKS[0] * blocks, _ROUNDS)

    def tasks(self) -> Iterator[tuple[Stream, int, str]]:
        """Yield requests, blocks in host memory and a backend.

        Raises:
            ToolError: The trace is absent, or cannot be read.
        """
        blocks = self.setting.num_blocks
        streams = [
            stream.of_sessions(workload, seed, blocks, ())
            for workload in (CONVERSATIONS, AGENTS)
            for seed in range(self.seeds)
        ]
        if self.trace:
            streams.append(stream.of_trace(Trace.read(self.trace)))
        for one in streams:
            for times in _CHUNKS:
                for backend in (PAGED, TAGMA):
                    yield one, times * blocks, backend
