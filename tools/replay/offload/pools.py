"""A pool and host memory behind it under a stream, with one backend's managers."""

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools import inside
from tools.base import process
from tools.base.project import CHECKOUT
from tools.replay.transfer.pools import PoolSetting, Run, Transfer
from tools.replay.transfer.stream import Stream
from tools.serve.host import Host

KEPT_BLOCKS = 500  # of the store and the load that are then made


@dataclass(frozen=True)
class Copied:
    """The transfers of one direction.

    Args:
        transfers: Blocks and runs; sources are "prefill", targets "decode" there.
        kept: The runs of one with about `KEPT_BLOCKS` blocks.
    """

    transfers: tuple[Transfer, ...]
    kept: list[Run]

    @property
    def mean_blocks(self) -> float:
        """Blocks of a transfer."""
        return sum(t.blocks for t in self.transfers) / max(1, len(self.transfers))

    @property
    def mean_runs(self) -> float:
        """Runs on both sides: copies of each tensor, if neighbours are merged."""
        return sum(t.runs for t in self.transfers) / max(1, len(self.transfers))


@dataclass(frozen=True)
class OffloadRun:
    """What a backend did with a stream.

    Args:
        backend: "paged" or "tagma", on both sides.
        stream: The requests.
        num_chunks: Blocks that the host has memory for.
        hit_tokens: Found in the pool.
        loaded_tokens: Found in host memory.
        preempted: Requests that lost their blocks.
        stores: From the pool to the host.
        loads: Back.
    """

    backend: str
    stream: Stream
    num_chunks: int
    hit_tokens: int
    loaded_tokens: int
    preempted: int
    stores: Copied
    loads: Copied

    @property
    def directions(self) -> dict[str, Copied]:
        """Both, by name."""
        return {"stores": self.stores, "loads": self.loads}


def run(
    host: Host, setting: PoolSetting, backend: str, stream: Stream, num_chunks: int
) -> OffloadRun:
    """Serve a stream with a backend's managers.

    Args:
        host: The serving environment.
        setting: How the pool is used.
        backend: "paged" or "tagma".
        stream: The requests.
        num_chunks: Blocks that the host has memory for.

    Raises:
        ToolError: The program failed.
    """
    given = {
        "setting": asdict(setting) | {"backend": backend, "kept": []},
        "requests": stream.to_data(),
        "host": backend,
        "num_chunks": num_chunks,
        "kept_blocks": KEPT_BLOCKS,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pools.json"
        file.write_text(json.dumps(given))
        process.run(
            inside.command(host.python, "offload_pools", file),
            cwd=CHECKOUT,
            env=host.neutral_environment() | {"VLLM_LOGGING_LEVEL": "ERROR"},
        )
        data = json.loads(file.read_text("utf-8"))
    counts = {n: data[n] for n in ("hit_tokens", "loaded_tokens", "preempted")}
    return OffloadRun(
        *(backend, stream, num_chunks),
        **counts,
        stores=_copied(data["stores"]),
        loads=_copied(data["loads"]),
    )


def _copied(data: dict[str, Any]) -> Copied:
    transfers = tuple(Transfer(*values) for values in data["transfers"])
    return Copied(transfers, [(a, b, count) for a, b, count in data["kept"]])
