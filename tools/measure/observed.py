"""What a server tells its operators: /metrics and its log."""

import re
from collections.abc import Iterator

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.serve.server import Server

PREFIX = "vllm:kv_cache_tagma_"
# Each must be there; those that count must have counted after the demo's requests.
_MUST_COUNT = (
    "ranges_per_request_count",
    "spills_total",
    "block_copies_total",
    "block_copies_per_step_count",
    "kept_cached_tokens_total",
)
_GAUGES = ("largest_free_extent_blocks", "one_range_requests_perc")
_MAY_BE_ZERO = ("cap_events_total",)
_LOG_LINE = re.compile(
    r"Engine \d+: KV cache ranges: [\d.]+% of \d+ reqs in one range, "
    r"Largest free extent: \d+ blocks, Spills: \d+, Block copies: \d+, "
)


def values(metrics: str) -> dict[str, float]:
    r"""Return the values of the backend's own metrics, without their buckets.

    >>> values('vllm:kv_cache_tagma_spills_total{engine="0"} 3.0\nvllm:other 1')
    {'spills_total': 3.0}
    """
    found = re.findall(rf"^{PREFIX}(\w+)\{{([^}}]*)\}} (\S+)$", metrics, re.M)
    return {name: float(value) for name, labels, value in found if "le=" not in labels}


def problems(backend: str, metrics: str, log: str) -> Iterator[str]:
    """Yield what is missing after requests that competed for blocks.

    Args:
        backend: What the server runs; with "paged" nothing of this may show.
        metrics: The text of /metrics.
        log: What the server has written.
    """
    seen = values(metrics)
    logged = bool(_LOG_LINE.search(log))
    if backend != "tagma":
        if seen or logged:
            yield f"{backend} shows what only tagma measures"
        return
    for name in (*_MUST_COUNT, *_GAUGES, *_MAY_BE_ZERO):
        if name not in seen:
            yield f"/metrics lacks {PREFIX}{name}"
        elif name in _MUST_COUNT and not seen[name]:
            yield f"{PREFIX}{name} is 0"
    if not logged:
        yield "the log has no line about ranges"


def preemptions(metrics: str) -> int:
    """Return the number of preemptions that /metrics holds.

    >>> preemptions('vllm:num_preemptions_total{engine="0"} 3.0')
    3
    """
    return total(metrics, "vllm:num_preemptions_total")


def loaded_tokens(metrics: str) -> int:
    """Return how many tokens of prompts a KV connector had, 0 without one.

    >>> loaded_tokens('vllm:external_prefix_cache_hits_total{engine="0"} 64.0')
    64
    """
    return total(metrics, "vllm:external_prefix_cache_hits_total")


def block_copies(metrics: str) -> int:
    """Return how many blocks were copied since they moved; paged moves none.

    >>> block_copies('vllm:kv_cache_tagma_block_copies_total{engine="0"} 3.0')
    3
    """
    return total(metrics, f"{PREFIX}block_copies_total")


def total(metrics: str, name: str) -> int:
    """Return a counter's value over all engines, 0 if it is not there."""
    found = re.findall(rf"^{name}\{{.*\}} (\S+)$", metrics, re.M)
    return int(sum(map(float, found)))


def held_share(metrics: str) -> float:
    """Return the share of the pool that requests hold."""
    found = re.findall(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", metrics, re.M)
    return sum(map(float, found))


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


def check_backend(server: Server, backend: str) -> None:
    """Check that a server runs the backend that it was asked for.

    Raises:
        ToolError: It says that it runs another one.
    """
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
