"""Replays a stream of calls on upstream's real BlockPool; runs where vLLM is.

Reads {"num_blocks", "calls"} from standard input and prints the block ids that the
request of each call holds after it, and the number of free blocks.
"""

import json
import sys
from types import SimpleNamespace

from vllm.v1.core.block_pool import BlockPool

BLOCK_SIZE = 16


def key_bytes(key: int) -> bytes:
    return key.to_bytes(32, "little")


def main() -> None:
    stream = json.load(sys.stdin)
    # One more, for the null block.
    pool = BlockPool(stream["num_blocks"] + 1, True, BLOCK_SIZE)
    held: dict[int, list] = {}
    requests: dict[int, SimpleNamespace] = {}
    for name, number, *arguments in stream["calls"]:
        if name == "admit":
            hashes, limit = arguments
            requests[number] = SimpleNamespace(block_hashes=[*map(key_bytes, hashes)])
            held[number] = []
            for block_hash in requests[number].block_hashes[:limit]:
                found = pool.get_cached_block(block_hash, [0])
                if found is None:
                    break
                held[number] += found
            pool.touch(held[number])
        elif name == "grow":
            held[number] += pool.get_new_blocks(arguments[0])
        elif name == "cache":
            start, stop = arguments
            pool.cache_full_blocks(
                requests[number], held[number], start, stop, BLOCK_SIZE, 0
            )
        else:
            pool.free_blocks(reversed(held[number]))
            held[number] = []
        ids = [block.block_id - 1 for block in held[number]]
        print(json.dumps([ids, pool.get_num_free_blocks()]))


if __name__ == "__main__":
    main()
