"""Real NIXL agents that move the blocks which the pools gave."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any

from tools import inside
from tools.base.process import run_watched
from tools.base.project import CHECKOUT
from tools.measure.pair.connector import Connector, Sites
from tools.replay.transfer.pools import PAGED, Run
from tools.serve.host import Host

LAYERS = 32
# As many blocks as any case has, in one run: what is left is for the bytes.
ONE_RUN = "one run"

Cases = Mapping[str, Mapping[str, Sequence[Run]]]


class Engine(Enum):
    """What moves blocks; the value is the program in `inside`."""

    NIXL = "transfer_agents"
    MOONCAKE = "mooncake_agents"


@dataclass(frozen=True)
class Layout:
    """How a pool lies in memory.

    Args:
        name: What to call it.
        layers: Regions that are registered.
        block_bytes: Bytes of a block in each.
        rounds: How often each transfer is timed.
        engine: What moves the blocks.
    """

    name: str
    layers: int
    block_bytes: int
    rounds: int
    engine: Engine = Engine.NIXL


LAYOUTS = (
    Layout("a region a layer, 4 KiB", LAYERS, 4096, 5),
    Layout("one packed region, 4 KiB", 1, LAYERS * 4096, 5),
    Layout("a region a layer, 64 KiB", LAYERS, 65536, 2),
    Layout("one packed region, 64 KiB", 1, LAYERS * 65536, 2),
    Layout("Mooncake, a region a layer, 4 KiB", LAYERS, 4096, 5, Engine.MOONCAKE),
)


@dataclass(frozen=True)
class Moved:
    """One side of a case in one layout; times are medians over the rounds.

    Args:
        layout: Its name.
        layers: Its regions.
        case: Its name.
        side: "paged", "tagma" or `ONE_RUN`.
        runs: Those of the blocks, on both sides.
        descriptors: As NIXL counts them.
        bytes: Likewise.
        make_ms: The thread's CPU time to make the transfer.
        cpu_ms: The decode process's CPU time for all of it.
        elapsed_ms: Its duration.
    """

    layout: str
    layers: int
    case: str
    side: str
    runs: int
    descriptors: int
    bytes: int
    make_ms: float
    cpu_ms: float
    elapsed_ms: float


_MEASURES = ("descriptors", "bytes", "make_ms", "cpu_ms", "elapsed_ms")


@dataclass(frozen=True)
class Agents:
    """What the agents need.

    Args:
        host: The serving environment.
        sites: The folders of the packages that move blocks.
        log: What the program writes.
        num_blocks: Blocks of a pool, with the null block.
    """

    host: Host
    sites: Sites
    log: Path
    num_blocks: int

    def move(
        self, layout: Layout, cases: Cases, on_case: Callable[[], None]
    ) -> list[Moved]:
        """Move the blocks of every case, all sides in turn; every byte is checked.

        Args:
            layout: How both pools lie in memory.
            cases: The runs of paged and of tagma, by the case's name.
            on_case: Called when one is done.

        Raises:
            ToolError: A transfer failed, or gave wrong bytes.
        """
        task: dict[str, Any] = {
            "layers": layout.layers,
            "block_bytes": layout.block_bytes,
            "num_blocks": self.num_blocks,
            "rounds": layout.rounds,
            "cases": {name: _with_one_run(sides) for name, sides in cases.items()},
        }
        rows = self._run(layout.engine, task, on_case)
        return [
            Moved(
                *(layout.name, layout.layers, case, side, len(runs)),
                **_medians(rows, case, side),
            )
            for case, sides in task["cases"].items()
            for side, runs in sides.items()
        ]

    def _run(
        self, engine: Engine, task: Mapping[str, Any], on_case: Callable[[], None]
    ) -> list[dict[str, Any]]:
        is_nixl = engine is Engine.NIXL
        connector = Connector.NIXL if is_nixl else Connector.MOONCAKE
        env = self.host.neutral_environment() | {
            **self.sites.environment(connector, "tcp,self", 0),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "UCX_RCACHE_MAX_UNRELEASED": "1024",
        }
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "agents.json"
            file.write_text(json.dumps(task))
            run_watched(
                inside.command(self.host.python, engine.value, file),
                output=self.log,
                on_line=lambda line: on_case() if line == "case\n" else None,
                cwd=CHECKOUT,
                env=env,
            )
            rows: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
            return rows


def _with_one_run(sides: Mapping[str, Sequence[Run]]) -> dict[str, Sequence[Run]]:
    blocks = sum(count for _, _, count in sides[PAGED])
    return {**sides, ONE_RUN: [(1, 1, blocks)]}


def _medians(rows: Sequence[Mapping[str, Any]], case: str, side: str) -> dict[str, Any]:
    chosen = [row for row in rows if (row["case"], row["side"]) == (case, side)]
    return {name: median(row[name] for row in chosen) for name in _MEASURES}
