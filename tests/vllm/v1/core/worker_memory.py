# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A worker's KV cache without a device, to see that every block has its content."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from tests.v1.core.scheduler_driver import MAX_MODEL_LEN, Setting, token_at
from vllm.v1.block_moves import BlockMoves
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.core.sched.output import SchedulerOutput

_POSITION_BITS = 20


@cache
def contents_of(conversation: int) -> np.ndarray:
    """Return what is computed for each token of a conversation, never 0: [tokens].

    Like keys and values it depends on the token and on where it stands.
    """
    tokens = [token_at(conversation, p) for p in range(MAX_MODEL_LEN)]
    positions = np.arange(1, MAX_MODEL_LEN + 1, dtype=np.int64)
    return np.array(tokens, dtype=np.int64) << _POSITION_BITS | positions


def chains_of(moves: list[KVCacheBlockCopy]) -> list[list[KVCacheBlockCopy]]:
    """Return the moves in parts: each one's target is the source of the one before."""
    chains: list[list[KVCacheBlockCopy]] = []
    for move in moves:
        if chains and move.dst_block_id == chains[-1][-1].src_block_id:
            chains[-1].append(move)
        else:
            chains.append([move])
    return chains


@dataclass
class BlockTable:
    """What a worker knows of a request.

    Args:
        contents: What its blocks are to hold, by token.
        blocks: Their ids.
        num_computed: How many tokens have been computed.

    """

    contents: np.ndarray
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0


class WorkerMemory:
    """What the slots of a worker's KV cache hold, by its own block tables.

    Does what a worker does with each step that it is sent, in the worker's order, and
    compares what a request's blocks hold when it is admitted and when it ends.

    Args:
        setting: Of the scheduler.
        conversations: That of each request, by its id.

    """

    def __init__(self, setting: Setting, conversations: dict[str, int]):
        self.slots = np.zeros(
            (setting.num_blocks + 1, setting.block_size), dtype=np.int64
        )
        self.num_moves = 0
        self._conversations = conversations
        self._tables: dict[str, BlockTable] = {}

    def run(self, output: SchedulerOutput) -> None:
        """Do what a step says.

        Raises:
            AssertionError: A block does not hold what it should.

        """
        for name in output.finished_req_ids | (output.preempted_req_ids or set()):
            if name in self._tables:
                self.check(name)
                del self._tables[name]
        self.flush(output)
        if copies := output.kv_cache_block_copies:
            assert isinstance(copies, BlockMoves) and not copies.copies_on_write
            self.move(copies.moves)
        self.slots[output.new_block_ids_to_zero or []] = 0
        admitted = self._take_blocks(output)
        for name, count in output.num_scheduled_tokens.items():
            self._compute(name, count)
        # A hit may be computed by the very step that reads it.
        for name in admitted:
            self.check(name)

    def flush(self, output: SchedulerOutput) -> None:
        """Let a connector read blocks before they are overwritten; here is none."""

    def check(self, name: str) -> None:
        """Compare all that was computed for a request with what its blocks hold."""
        table = self._tables[name]
        held = self.slots[table.blocks].reshape(-1)[: table.num_computed]
        expected = table.contents[: table.num_computed]
        assert np.array_equal(held, expected), (
            f"request {name} reads a wrong block: {np.flatnonzero(held != expected)}"
        )

    def check_all(self) -> None:
        """Compare what the blocks of all requests hold."""
        for name in self._tables:
            self.check(name)

    def move(self, moves: list[KVCacheBlockCopy]) -> None:
        """Move at once; one after the other has to come to the same."""
        self.num_moves += len(moves)
        sources, targets = (list(blocks) for blocks in zip(*moves))
        after = self.slots.copy()
        after[targets] = self.slots[sources]
        for chain in chains_of(moves):
            saved = self.slots[chain[0].dst_block_id].copy()
            for source, target in chain:
                self.slots[target] = self.slots[source]
            if chain[-1].src_block_id == chain[0].dst_block_id:
                self.slots[chain[-1].dst_block_id] = saved
        assert np.array_equal(self.slots, after), "moves are in a wrong order"

    def _take_blocks(self, output: SchedulerOutput) -> list[str]:
        """Keep the block tables, and return the requests that are admitted."""
        cached = output.scheduled_cached_reqs
        admitted = [new.req_id for new in output.scheduled_new_reqs]
        admitted += cached.resumed_req_ids
        for name in admitted:
            contents = contents_of(self._conversations[name])
            self._tables[name] = BlockTable(contents)
        for new in output.scheduled_new_reqs:
            table = self._tables[new.req_id]
            table.blocks += new.block_ids[0]
            table.num_computed = new.num_computed_tokens
        for name, blocks, count in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens
        ):
            table = self._tables[name]
            table.blocks += blocks[0] if blocks else ()
            table.num_computed = count
        return admitted

    def _compute(self, name: str, count: int) -> None:
        table = self._tables[name]
        positions = np.arange(table.num_computed, table.num_computed + count)
        block_size = self.slots.shape[1]
        blocks = np.array(table.blocks)[positions // block_size]
        self.slots[blocks, positions % block_size] = table.contents[positions]
        table.num_computed += count
