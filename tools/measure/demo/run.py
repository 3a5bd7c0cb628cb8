"""The run of a demo: pairs of servers, one per backend, and the same sent to both.

Everything shown was measured on these servers. A comparison fails if one token
differs, and also if a scenario did not do what it is there for.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.base.process import run
from tools.measure import observed
from tools.measure.demo.asking import measure
from tools.measure.demo.comparison import ScenarioComparison
from tools.measure.demo.measured import Measured
from tools.measure.demo.plugin import Probe
from tools.measure.demo.result import DemoResult, PairResult
from tools.measure.demo.scenarios import (
    BATCHED_TOKENS,
    BLOCK_SIZE,
    BLOCKS,
    MODEL_TOKENS,
    Scenario,
    make_offloaded,
    make_scenarios,
    make_short_list,
)
from tools.serve import model
from tools.serve.host import Host
from tools.serve.port import ADDRESS, choose_port
from tools.serve.server import Server, running

BACKENDS = ("paged", "tagma")

_ARGUMENTS = (
    "--dtype=float32",
    f"--block-size={BLOCK_SIZE}",
    f"--num-gpu-blocks-override={BLOCKS}",
    "--kv-cache-memory-bytes=1G",
    f"--max-model-len={MODEL_TOKENS}",
    f"--max-num-batched-tokens={BATCHED_TOKENS}",
    "--async-scheduling",
    "--enable-prompt-tokens-details",
    "--seed=0",
    f"--served-model-name={model.NAME}",
    f"--host={ADDRESS}",
)
# Ranks share the cores: one for each by itself is more than a small host may have.
_CPU_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}

# Upstream's connector, with its copies made between host tensors where no GPU is.
_OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 30},
}
_LATE_STEPS = "2"  # in which a copy is asked for in vain

_READY_S = 300.0


@dataclass(frozen=True)
class Pair:
    """Two servers, one of each backend, and what they are asked.

    Args:
        name: What to call it; the first needs no name.
        tensor_parallel: Over how many workers each spreads the model.
        arguments: Of the servers, besides those of all.
        variables: Of their environment on a host without a GPU.
        make_scenarios: Makes the scenarios of pages and the server's tokenizer.
    """

    name: str
    make_scenarios: Callable[
        [Sequence[Path], Callable[[str], list[int]]], tuple[Scenario, ...]
    ]
    tensor_parallel: int = 1
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


PAIRS = (
    Pair("", make_scenarios),
    Pair("TP 2", make_short_list, tensor_parallel=2, variables=_CPU_RANKS),
    Pair(
        "offloading",
        make_offloaded,
        arguments=(f"--kv-transfer-config={json.dumps(_OFFLOADING)}",),
        variables={"TAGMA_HOST_OFFLOAD": _LATE_STEPS},
    ),
)


@dataclass(frozen=True)
class Demo:
    """Runs the scenarios on pairs of servers.

    Args:
        host: Where the servers run.
        model: The model's folder.
        tree: The tree with the documentation.
        build: The project's folder of generated files.
    """

    host: Host
    model: Path
    tree: Path
    build: Path

    def run(self) -> DemoResult:
        """Run both backends and compare them.

        Raises:
            ToolError: A server failed, or runs another backend.
        """
        most = None if self.host.on_cpu else _count_gpus(self.host)
        fitting = [p for p in PAIRS if most is None or p.tensor_parallel <= most]
        return DemoResult(
            tuple(map(self._compare, fitting)),
            tuple(
                f"{pair.name}: this host has {most} GPU"
                for pair in PAIRS
                if pair not in fitting
            ),
        )

    def _compare(self, pair: Pair) -> PairResult:
        scenarios: tuple[Scenario, ...] = ()
        start_s: dict[str, float] = {}
        measured: dict[str, list[Measured]] = {}
        unobserved: list[str] = []
        for backend in BACKENDS:
            began = time.monotonic()
            probe = Probe(self.build / "demo" / "probe", "probe", "asynchronous")
            probe.install()
            with self._server(backend, pair, probe) as server:
                start_s[backend] = time.monotonic() - began
                observed.check_backend(server, backend)
                if not scenarios:
                    pages = model.documents(self.tree)
                    scenarios = pair.make_scenarios(
                        pages, lambda text: model.tokenize(server, text)
                    )
                measured[backend] = list(measure(server, probe, scenarios))
                log = server.log.read_text("utf-8", "replace")
                unobserved += observed.problems(backend, server.metrics(), log)
        rows = zip(scenarios, measured["paged"], measured["tagma"], strict=True)
        comparisons = tuple(ScenarioComparison(*row) for row in rows)
        return PairResult(pair.name, start_s, comparisons, tuple(unobserved))

    @contextmanager
    def _server(self, backend: str, pair: Pair, probe: Probe) -> Iterator[Server]:
        env = self.host.neutral_environment()
        env |= probe.environment(env) | {"VLLM_LOG_STATS_INTERVAL": "1"}
        if self.host.on_cpu:
            env |= pair.variables
        port = choose_port(None)
        name = "-".join([backend, *pair.name.lower().split()])
        with running(
            [
                self.host.vllm,
                "serve",
                self.model,
                *self.host.arguments,
                *_ARGUMENTS,
                *pair.arguments,
                f"--tensor-parallel-size={pair.tensor_parallel}",
                f"--port={port}",
                f"--kv-cache-backend={backend}",
            ],
            name=f"vllm serve ({name})",
            env=env,
            port=port,
            log=self.build / "logs" / f"demo-{name}.log",
            limit_s=_READY_S,
        ) as server:
            yield server


def _count_gpus(host: Host) -> int:
    code = "import torch; print(torch.cuda.device_count())"
    return int(run([host.python, "-c", code]).text)
