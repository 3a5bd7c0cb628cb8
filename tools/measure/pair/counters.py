"""What the servers of a pair count, read from /metrics."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

_METRICS = {
    "transfers": "nixl_num_descriptors_count",
    "descriptors": "nixl_num_descriptors_sum",
    "bytes": "nixl_bytes_transferred_sum",
    "post_s": "nixl_post_time_seconds_sum",
    "transfer_s": "nixl_xfer_time_seconds_sum",
    "failed": "nixl_num_failed_transfers_total",
    "expired": "nixl_num_kv_expired_reqs_total",
    "late": "nixl_num_notifications_after_expiry_total",
    "prefix_hits": "prefix_cache_hits_total",
    "preemptions": "num_preemptions_total",
}


@dataclass(frozen=True)
class Counters:
    """Counts of one server, or of several together.

    Args:
        transfers: Transfers that this server posted and that ended well.
        descriptors: What NIXL posted for them.
        bytes: What they moved.
        post_s: Time to post them, in seconds.
        transfer_s: From the post to the end, in seconds.
        failed: Transfers, handshakes and notifications that failed.
        expired: Requests whose blocks were freed before they were read.
        late: Notifications of requests that had expired.
        prefix_hits: Prompt tokens found in this server's own prefix cache.
        preemptions: Requests that lost their blocks to others.
    """

    transfers: float = 0
    descriptors: float = 0
    bytes: float = 0
    post_s: float = 0
    transfer_s: float = 0
    failed: float = 0
    expired: float = 0
    late: float = 0
    prefix_hits: float = 0
    preemptions: float = 0

    def __add__(self, other: "Counters") -> "Counters":
        return Counters(*(a + b for a, b in self._with(other)))

    def __sub__(self, other: "Counters") -> "Counters":
        return Counters(*(a - b for a, b in self._with(other)))

    def _with(self, other: "Counters") -> list[tuple[float, float]]:
        names = [field.name for field in fields(self)]
        return [(getattr(self, name), getattr(other, name)) for name in names]

    def each(self, value: float) -> float:
        """Return a sum as a mean over the transfers."""
        return value / self.transfers if self.transfers else 0.0


def counters_of(metrics: str) -> Counters:
    r"""Return the counts that /metrics holds.

    >>> counters_of('vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2.0').expired
    2.0
    """
    return Counters(**{name: _sum(metrics, key) for name, key in _METRICS.items()})


def recorded(lines: Iterable[Mapping[str, Any]]) -> Counters:
    """Return what the probe has counted of Mooncake's sends.

    >>> recorded([{"descriptors": 6, "bytes": 32}, {"sends": 1}, {"held": 0}]).bytes
    32
    """
    names = {field.name for field in fields(Counters)}
    total = Counters()
    for line in lines:
        total += Counters(**{name: line[name] for name in names & set(line)})
    return total


def _sum(metrics: str, name: str) -> float:
    found = re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", metrics, re.M)
    return sum(map(float, found))
