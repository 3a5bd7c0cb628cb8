"""The scenarios' requests, sent to a server, and what came of them."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tools.base import console
from tools.measure import observed
from tools.measure.demo.measured import Measured, Reply
from tools.measure.demo.plugin import Probe
from tools.measure.demo.scenarios import Scenario
from tools.serve import model
from tools.serve.server import Server


def measure(
    server: Server, probe: Probe, scenarios: Sequence[Scenario]
) -> Iterator[Measured]:
    """Send the scenarios one after the other and yield what each gave."""
    # The first request pays for imports; it is not measured.
    first = replace(scenarios[0], max_tokens=2)
    _send(server, first.prompts[0][:1], first, time.monotonic())
    probe.take()
    with console.step(f"ask {server.name}", len(scenarios)) as step:
        for scenario in scenarios:
            before = server.metrics()
            began = time.monotonic()
            with ThreadPoolExecutor(
                1 if scenario.in_turn else len(scenario.prompts)
            ) as pool:
                sent = [
                    pool.submit(_send, server, prompt, scenario, began)
                    for prompt in scenario.prompts
                ]
                replies = tuple(future.result() for future in sent)
            seconds = time.monotonic() - began
            after = server.metrics()
            yield Measured(
                replies,
                probe.take(),
                observed.preemptions(after) - observed.preemptions(before),
                observed.loaded_tokens(after) - observed.loaded_tokens(before),
                observed.block_copies(after) - observed.block_copies(before),
                seconds,
            )
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
