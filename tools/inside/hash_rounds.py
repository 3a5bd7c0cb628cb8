"""Rounds of hashing blocks, which is no manager's work."""

from time import thread_time_ns

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher

from tools.inside.request import make_request
from tools.inside.rounds import Round, settle
from tools.inside.setting import BLOCK_SIZE, DECODE_PROMPT, DECODING


def hash_prompt(name: str, num_tokens: int) -> Round:
    """Hash the blocks of a prompt with vLLM's default function."""
    hash_blocks = get_request_block_hasher(BLOCK_SIZE, sha256)

    def measure() -> dict[str, float]:
        request = make_request(num_tokens)
        settle()
        begin = thread_time_ns()
        hash_blocks(request)
        return {name: thread_time_ns() - begin}

    return measure


def hash_decode(name: str) -> Round:
    """Append one token to each of many requests and hash the blocks that get full."""
    hash_blocks = get_request_block_hasher(BLOCK_SIZE, sha256)
    requests = [
        make_request(DECODE_PROMPT - index % BLOCK_SIZE, hash_blocks)
        for index in range(DECODING)
    ]

    def measure() -> dict[str, float]:
        settle()
        begin = thread_time_ns()
        for _ in range(BLOCK_SIZE):
            for request in requests:
                request.append_output_token_ids(1)
        return {name: (thread_time_ns() - begin) / BLOCK_SIZE}

    return measure
