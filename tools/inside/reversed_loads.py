"""A vLLM plugin that makes LMCache load into the wrong blocks: a negative control.

The block ids of each load are turned round, so what is loaded is in the wrong order. A
demonstration that cannot see that would see no other wrong load either.
"""

from typing import Any


def register() -> None:
    """Wrap the method that says where a load goes."""
    from lmcache.integration.vllm import lmcache_mp_metadata

    request = lmcache_mp_metadata.LMCacheMPRequestMetadata
    where = request.GetRetrieveMetadata
    if where.__module__ == __name__:
        return  # vLLM may load a plugin more than once

    def turn_round(*args: Any, **kwargs: Any) -> Any:
        load = where(*args, **kwargs)
        if load:
            load.op.block_ids = [list(reversed(ids)) for ids in load.op.block_ids]
        return load

    request.GetRetrieveMetadata = staticmethod(turn_round)
