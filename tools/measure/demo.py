"""Paged and tagma side by side: the same requests to a real server of each.

Everything shown was measured on these servers. A comparison fails if one token
differs, and also if a scenario did not do what it is there for.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from tools import inside
from tools.base import console
from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.measure import observed
from tools.serve import model
from tools.serve.host import Host
from tools.serve.port import ADDRESS, choose_port
from tools.serve.server import Server, running

BACKENDS = ("paged", "tagma")

# One small pool for all scenarios: a server takes longer to start than to answer.
BLOCK_SIZE = 32  # the CPU's attention takes multiples of 32 only
BLOCKS = 64  # one of them is the null block
MODEL_TOKENS = 1024
BATCHED_TOKENS = 256
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
_PROBE = inside.FOLDER / "probe.py"


class Claim(Enum):
    """What a scenario is there for; checked on both backends."""

    CHUNKED = "the prompt is prefilled in chunks"
    PREFIX_HIT = "the prompt is found in the prefix cache"
    CONCURRENT = "streams run at once"
    PREEMPTED = "requests are preempted"


@dataclass(frozen=True)
class Scenario:
    """Requests that are sent at once.

    Args:
        name: What to call it.
        prompts: Token ids, one prompt per request.
        max_tokens: How many tokens each request generates.
        claim: What must be seen to happen.
        sampling: Parameters of the requests on top of greedy decoding.
    """

    name: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    claim: Claim | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """One streamed answer; times are seconds since the scenario began."""

    tokens: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    first_s: float
    end_s: float


@dataclass(frozen=True)
class Held:
    """How a request held its blocks when it gave them back; the probe says it."""

    request: str
    blocks: int
    runs: int


@dataclass(frozen=True)
class Measured:
    """What one backend did in one scenario."""

    replies: tuple[Reply, ...]
    held: tuple[Held, ...]
    preemptions: int
    seconds: float

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache supplied."""
        return sum(reply.cached_tokens for reply in self.replies)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens over the time of the whole scenario."""
        return sum(len(reply.tokens) for reply in self.replies) / self.seconds

    @property
    def mean_runs(self) -> float:
        """Mean number of runs over all releases of a request's blocks."""
        return sum(held.runs for held in self.held) / max(len(self.held), 1)

    @property
    def max_runs(self) -> int:
        """The largest number of runs at a release."""
        return max((held.runs for held in self.held), default=0)

    @property
    def most_at_once(self) -> int:
        """How many requests were generating at the same time, at most."""
        return max(
            sum(other.first_s <= reply.first_s < other.end_s for other in self.replies)
            for reply in self.replies
        )


@dataclass(frozen=True)
class Comparison:
    """One scenario on both backends."""

    scenario: Scenario
    paged: Measured
    tagma: Measured

    @property
    def differences(self) -> tuple[str, ...]:
        """For each request whose tokens differ: where, and both tokens."""
        found = []
        pairs = zip(self.paged.replies, self.tagma.replies, strict=True)
        for number, (paged, tagma) in enumerate(pairs, 1):
            at = _first_difference(paged.tokens, tagma.tokens)
            if at is not None:
                found.append(
                    f"{self.scenario.name}, request {number}, token {at + 1}: "
                    f"paged {_at(paged.tokens, at)}, tagma {_at(tagma.tokens, at)}"
                )
        return tuple(found)

    @property
    def unmet(self) -> tuple[str, ...]:
        """What should have happened and did not."""
        return tuple(
            f"{self.scenario.name}, {name}: {problem}"
            for name, measured in (("paged", self.paged), ("tagma", self.tagma))
            for problem in _unmet(self.scenario, measured)
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes this comparison fail."""
        return self.differences + self.unmet

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "scenario": self.scenario.name,
            "claim": self.scenario.claim.value if self.scenario.claim else None,
            "requests": len(self.scenario.prompts),
            "max_tokens": self.scenario.max_tokens,
            "tokens_equal": not self.differences,
            "problems": list(self.problems),
            "paged": _measured_data(self.paged),
            "tagma": _measured_data(self.tagma),
        }


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def _at(tokens: Sequence[int], index: int) -> str:
    return str(tokens[index]) if index < len(tokens) else "(ended)"


def _unmet(scenario: Scenario, measured: Measured) -> Iterator[str]:
    for number, reply in enumerate(measured.replies, 1):
        # A grammar ends where it is fulfilled.
        ends_early = "structured_outputs" in scenario.sampling and reply.tokens
        if len(reply.tokens) != scenario.max_tokens and not ends_early:
            yield f"request {number} gave {len(reply.tokens)} tokens"
    if len(measured.held) < len(measured.replies):
        yield f"only {len(measured.held)} releases of blocks were recorded"
    match scenario.claim:
        case Claim.CHUNKED:
            if any(r.prompt_tokens <= BATCHED_TOKENS for r in measured.replies):
                yield f"a prompt fits into one batch of {BATCHED_TOKENS} tokens"
            if measured.cached_tokens:
                yield f"{measured.cached_tokens} tokens came from the prefix cache"
        case Claim.PREFIX_HIT:
            if not measured.cached_tokens:
                yield "no token came from the prefix cache"
        case Claim.CONCURRENT:
            if measured.most_at_once < 2:
                yield "the streams ran one after the other"
        case Claim.PREEMPTED:
            if not measured.preemptions:
                yield "no request was preempted"
        case None:
            pass


def _measured_data(measured: Measured) -> dict[str, Any]:
    return asdict(measured) | {
        "cached_tokens": measured.cached_tokens,
        "tokens_per_s": round(measured.tokens_per_s, 2),
        "mean_runs": round(measured.mean_runs, 2),
        "max_runs": measured.max_runs,
        "most_at_once": measured.most_at_once,
    }


def make_scenarios(
    pages: Sequence[Path], tokenize: Callable[[str], list[int]]
) -> tuple[Scenario, ...]:
    """Cut the prompts of all scenarios out of documentation pages.

    Args:
        pages: The pages; the longest are used, one per prompt.
        tokenize: The server's tokenizer.

    Raises:
        ToolError: There are too few long pages.
    """
    longest = iter(sorted(pages, key=lambda page: (-page.stat().st_size, page)))

    def cut(length: int) -> tuple[int, ...]:
        page = next(longest, None)
        text = page.read_text("utf-8")[: 12 * length] if page else ""
        tokens = tuple(tokenize(text)[:length])
        if len(tokens) < length:
            raise ToolError(
                Outcome.OUT_OF_SYNC,
                f"the documentation has no further page of {length} tokens",
                ("Make the tree: python -m tools apply",),
            )
        return tokens

    long = cut(800)
    shared = long[: 20 * BLOCK_SIZE] + cut(128)
    return (
        Scenario("short prompt", (cut(24),), 24),
        Scenario("long prompt", (long,), 24, Claim.CHUNKED),
        Scenario("the same again", (long,), 24, Claim.PREFIX_HIT),
        Scenario("shared prefix", (shared,), 24, Claim.PREFIX_HIT),
        Scenario("8 streams", tuple(cut(64) for _ in range(8)), 96, Claim.CONCURRENT),
        Scenario(
            "sampled",
            (cut(24), cut(24)),
            24,
            sampling={"temperature": 1, "top_p": 0.9, "top_k": 20, "seed": 1},
        ),
        Scenario(
            "structured output",
            (cut(24),),
            24,
            sampling={
                "structured_outputs": {"choice": ["paged", "tagma"]},
                "ignore_eos": False,
            },
        ),
        # Four fit with the 13 blocks of their prompts, not with their last 17.
        Scenario(
            "pool too small", tuple(cut(400) for _ in range(8)), 120, Claim.PREEMPTED
        ),
    )


class Probe:
    """The plugin that records runs, installed in a folder for PYTHONPATH."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.file = folder / "runs.jsonl"
        self._read = 0

    def install(self) -> None:
        """Write the plugin and the metadata through which vLLM finds it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        metadata = self.folder / "tagma_probe-1.dist-info"
        metadata.mkdir(parents=True)
        shutil.copyfile(_PROBE, self.folder / "tagma_probe.py")
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: tagma-probe\nVersion: 1\n"
        )
        (metadata / "entry_points.txt").write_text(
            "[vllm.general_plugins]\ntagma_probe = tagma_probe:register\n"
        )
        self.file.touch()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make a server load the plugin, and no other."""
        path = [str(self.folder), *filter(None, [base.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(path),
            "VLLM_PLUGINS": "tagma_probe",
            "TAGMA_PROBE_FILE": str(self.file),
        }

    def take(self) -> tuple[Held, ...]:
        """Return what was recorded since the last call."""
        lines = self.file.read_text("utf-8").splitlines()
        new, self._read = lines[self._read :], len(lines)
        return tuple(Held(**json.loads(line)) for line in new)


def preemptions(metrics: str) -> int:
    """Return the number of preemptions that /metrics holds.

    >>> preemptions('vllm:num_preemptions_total{engine="0"} 3.0')
    3
    """
    found = re.findall(r"^vllm:num_preemptions_total\{.*\} (\S+)$", metrics, re.M)
    return int(sum(map(float, found)))


def backend_of(metrics: str) -> str:
    r"""Return the backend that a server says it runs.

    >>> backend_of('# …\nvllm:cache_config_info{kv_cache_backend="tagma"} 1.0')
    'tagma'
    """
    found = re.search(
        r'^vllm:cache_config_info\{.*kv_cache_backend="(\w+)"', metrics, re.M
    )
    return found[1] if found else "unknown"


def write_path_of(log: str) -> str:
    """Return the write path that a server's log names; paged names none.

    >>> write_path_of('INFO …] KV cache write path: tagma, slot mappings …')
    'tagma'
    """
    found = re.search(r"KV cache write path: (\w+)", log)
    return found[1] if found else "paged"


@dataclass(frozen=True)
class Result:
    """The end of a demo.

    Args:
        start_s: How long each server took to start.
        comparisons: Every scenario.
        unobserved: What the servers should have told their operators.
    """

    start_s: Mapping[str, float]
    comparisons: tuple[Comparison, ...]
    unobserved: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes the demo fail."""
        compared = tuple(p for c in self.comparisons for p in c.problems)
        return compared + self.unobserved

    @property
    def outcome(self) -> Outcome:
        """DONE, or DIFFERENT at any problem."""
        return Outcome.DIFFERENT if self.problems else Outcome.DONE

    def to_data(self) -> dict[str, Any]:
        """Return all that was measured, for JSON."""
        return {
            "settings": {
                "block_size": BLOCK_SIZE,
                "blocks": BLOCKS,
                "max_model_len": MODEL_TOKENS,
                "max_num_batched_tokens": BATCHED_TOKENS,
            },
            "start_s": {name: round(s, 1) for name, s in self.start_s.items()},
            "scenarios": [comparison.to_data() for comparison in self.comparisons],
        }

    def table(self) -> Table:
        """Return the table for people; pairs are paged / tagma."""
        table = Table(
            box=box.SIMPLE_HEAD,
            title="paged / tagma",
            caption="ranges: contiguous stretches in which a request held its blocks "
            "when it gave\nthem back, mean (most); counted in the same way for both\n"
            "tokens/s: generated tokens over the time of the scenario; under Triton's\n"
            "interpreter they say nothing about a GPU",
            caption_justify="left",
        )
        table.add_column("scenario")
        table.add_column("tokens")
        for name in ("at once", "prefix hits", "preemptions", "ranges", "tokens/s"):
            table.add_column(name, justify="right")
        for comparison in self.comparisons:
            paged, tagma = comparison.paged, comparison.tagma
            table.add_row(
                comparison.scenario.name,
                "DIFFERENT" if comparison.differences else "equal",
                f"{paged.most_at_once} / {tagma.most_at_once}",
                f"{paged.cached_tokens} / {tagma.cached_tokens}",
                f"{paged.preemptions} / {tagma.preemptions}",
                f"{paged.mean_runs:.1f} ({paged.max_runs}) / "
                f"{tagma.mean_runs:.1f} ({tagma.max_runs})",
                f"{paged.tokens_per_s:.1f} / {tagma.tokens_per_s:.1f}",
            )
        return table


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

    def run(self) -> Result:
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
                _check_backend(server, backend)
                if not scenarios:
                    pages = model.documents(self.tree)
                    scenarios = make_scenarios(pages, lambda t: _tokenize(server, t))
                measured[backend] = list(_measure(server, probe, scenarios))
                log = server.log.read_text("utf-8", "replace")
                unobserved += observed.problems(backend, server.metrics(), log)
        rows = zip(scenarios, measured["paged"], measured["tagma"], strict=True)
        comparisons = tuple(Comparison(*row) for row in rows)
        return Result(start_s, comparisons, tuple(unobserved))

    @contextmanager
    def _server(self, backend: str, probe: Probe) -> Iterator[Server]:
        # The user's own vLLM settings must not make a difference here.
        base = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
        env = self.host.environment(base) | probe.environment(base)
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
            env=env | {"HF_HUB_OFFLINE": "1", "VLLM_LOG_STATS_INTERVAL": "1"},
            port=port,
            log=self.build / "logs" / f"demo-{backend}.log",
            limit_s=_READY_S,
        ) as server:
            yield server


def _check_backend(server: Server, backend: str) -> None:
    runs = {
        "backend": backend_of(server.metrics()),
        "write path": write_path_of(server.log.read_text("utf-8", "replace")),
    }
    for what, found in runs.items():
        if found != backend:
            raise ToolError(
                Outcome.DIFFERENT,
                f"the server was asked for the {what} {backend} and says {found}",
                (f"Read {server.log}",),
            )


def _tokenize(server: Server, text: str) -> list[int]:
    tokens: list[int] = server.post(
        "/tokenize", {"model": model.NAME, "prompt": text, "add_special_tokens": False}
    )["tokens"]
    return tokens


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
            before = preemptions(server.metrics())
            began = time.monotonic()
            with ThreadPoolExecutor(len(scenario.prompts)) as pool:
                sent = [
                    pool.submit(_send, server, prompt, scenario, began)
                    for prompt in scenario.prompts
                ]
                replies = tuple(future.result() for future in sent)
            seconds = time.monotonic() - began
            after = preemptions(server.metrics())
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
