"""What a pair of servers runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LAZY = "lmcache.mp.lazy_offload"


@dataclass(frozen=True)
class Setting:
    """What the servers run.

    Args:
        name: What to call it.
        backend: vLLM's KV cache backend.
        uses_lmcache: Whether LMCache is behind it.
        options: Of LMCache's connector.
        is_control: Loads go to the wrong blocks, which must show.
    """

    name: str
    backend: str
    uses_lmcache: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    is_control: bool = False

    @property
    def file_name(self) -> str:
        """The name for files."""
        return self.name.replace(", ", "-").replace(" ", "-")

    @property
    def is_lazy(self) -> bool:
        """Whether blocks are stored when they are about to be given away."""
        return bool(self.options.get(_LAZY))


ALONE = Setting("paged without LMCache", "paged", uses_lmcache=False)
PAGED, TAGMA = Setting("paged", "paged"), Setting("tagma", "tagma")
CONTROL = Setting("tagma, loads reversed", "tagma", is_control=True)

_DRIVEN = {"lmcache.mp.mp_transfer_mode": "lmcache_driven"}
_FIFO = {
    _LAZY: True,
    "lmcache.mp.lazy_offload_policy": "FIFO",
    "lmcache.mp.lazy_offload_threshold": 2,
}
FURTHER = (
    Setting("tagma, LMCache drives", "tagma", options=_DRIVEN),
    Setting("paged, lazy", "paged", options={_LAZY: True}),
    Setting("tagma, lazy", "tagma", options={_LAZY: True}),
    Setting("tagma, lazy FIFO", "tagma", options=_FIFO),
)
