"""The run of a demo: pairs of servers, one per backend, and the same sent to both.

Everything shown was measured on these servers. A comparison fails if one token
differs, and also if a scenario did not do what it is there for.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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

_READY_S = 300.0


@dataclass(frozen=True)
class Pair:
    """Two servers, one of each backend, and what they are asked.

    Args:
        tensor_parallel: Over how many workers each spreads the model.
        make_scenarios: Makes the scenarios of pages and the server's tokenizer.
    """

    tensor_parallel: int
    make_scenarios: Callable[
        [Sequence[Path], Callable[[str], list[int]]], tuple[Scenario, ...]
    ]


PAIRS = (Pair(1, make_scenarios), Pair(2, make_short_list))


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
                f"TP {pair.tensor_parallel}: this host has {most} GPU"
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
            with self._server(backend, pair.tensor_parallel, probe) as server:
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
        return PairResult(pair.tensor_parallel, start_s, comparisons, tuple(unobserved))

    @contextmanager
    def _server(
        self, backend: str, tensor_parallel: int, probe: Probe
    ) -> Iterator[Server]:
        env = self.host.neutral_environment()
        env |= probe.environment(env) | {"VLLM_LOG_STATS_INTERVAL": "1"}
        if self.host.on_cpu and tensor_parallel > 1:
            env |= _CPU_RANKS
        port = choose_port(None)
        name = backend if tensor_parallel == 1 else f"{backend}-tp{tensor_parallel}"
        with running(
            [
                self.host.vllm,
                "serve",
                self.model,
                *self.host.arguments,
                *_ARGUMENTS,
                f"--tensor-parallel-size={tensor_parallel}",
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
