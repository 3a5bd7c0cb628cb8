"""The run of a demo: one server per backend, and all scenarios sent to each.

Everything shown was measured on these servers. A comparison fails if one token
differs, and also if a scenario did not do what it is there for.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.base import console
from tools.measure import observed
from tools.measure.demo.comparison import DemoResult, ScenarioComparison
from tools.measure.demo.measured import Measured, Reply
from tools.measure.demo.plugin import Probe
from tools.measure.demo.scenarios import (
    BATCHED_TOKENS,
    BLOCK_SIZE,
    BLOCKS,
    MODEL_TOKENS,
    Scenario,
    make_scenarios,
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
    "--enable-prompt-tokens-details",
    "--seed=0",
    f"--served-model-name={model.NAME}",
    f"--host={ADDRESS}",
)

_READY_S = 300.0


@dataclass(frozen=True)
class Demo:
    """Runs the scenarios on one server per backend.

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
        scenarios: tuple[Scenario, ...] = ()
        start_s: dict[str, float] = {}
        measured: dict[str, list[Measured]] = {}
        unobserved: list[str] = []
        for backend in BACKENDS:
            began = time.monotonic()
            probe = Probe(self.build / "demo" / "probe")
            probe.install()
            with self._server(backend, probe) as server:
                start_s[backend] = time.monotonic() - began
                observed.check_backend(server, backend)
                if not scenarios:
                    pages = model.documents(self.tree)
                    scenarios = make_scenarios(
                        pages, lambda t: model.tokenize(server, t)
                    )
                measured[backend] = list(_measure(server, probe, scenarios))
                log = server.log.read_text("utf-8", "replace")
                unobserved += observed.problems(backend, server.metrics(), log)
        rows = zip(scenarios, measured["paged"], measured["tagma"], strict=True)
        comparisons = tuple(ScenarioComparison(*row) for row in rows)
        return DemoResult(start_s, comparisons, tuple(unobserved))

    @contextmanager
    def _server(self, backend: str, probe: Probe) -> Iterator[Server]:
        env = self.host.neutral_environment()
        port = choose_port(None)
        with running(
            [
                self.host.vllm,
                "serve",
                self.model,
                *self.host.arguments,
                *_ARGUMENTS,
                f"--port={port}",
                f"--kv-cache-backend={backend}",
            ],
            name=f"vllm serve ({backend})",
            env=env | probe.environment(env) | {"VLLM_LOG_STATS_INTERVAL": "1"},
            port=port,
            log=self.build / "logs" / f"demo-{backend}.log",
            limit_s=_READY_S,
        ) as server:
            yield server


def _measure(
    server: Server, probe: Probe, scenarios: Sequence[Scenario]
) -> Iterator[Measured]:
    """Send the scenarios one after the other and yield what each gave."""
    # The first request pays for imports; it is not measured.
    first = replace(scenarios[0], max_tokens=2)
    _send(server, first.prompts[0][:1], first, time.monotonic())
    probe.take()
    with console.step(f"ask {server.name}", len(scenarios)) as step:
        for scenario in scenarios:
            before = observed.preemptions(server.metrics())
            began = time.monotonic()
            with ThreadPoolExecutor(len(scenario.prompts)) as pool:
                sent = [
                    pool.submit(_send, server, prompt, scenario, began)
                    for prompt in scenario.prompts
                ]
                replies = tuple(future.result() for future in sent)
            seconds = time.monotonic() - began
            after = observed.preemptions(server.metrics())
            yield Measured(replies, probe.take(), after - before, seconds)
            step.advance(1)


def _send(
    server: Server, prompt: tuple[int, ...], scenario: Scenario, began: float
) -> Reply:
    tokens: list[int] = []
    usage: dict[str, Any] = {}
    first_s = 0.0
    for event in server.events(
        "/v1/completions",
        {
            "model": model.NAME,
            "prompt": list(prompt),
            "max_tokens": scenario.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **scenario.sampling,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ):
        for choice in event["choices"]:
            first_s = first_s or time.monotonic() - began
            tokens += choice["token_ids"]
        usage = event.get("usage") or usage
    return Reply(
        tuple(tokens),
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        first_s,
        time.monotonic() - began,
    )
