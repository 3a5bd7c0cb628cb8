# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A prefill and a decode scheduler with a real connector, and workers that copy late.

Both sides have a `WorkerMemory`, so that a block which is moved, evicted or given away
while somebody reads or writes it is seen by its content.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.v1.core.scheduler_driver import Arrival, Driver, SchedulerFactory, Setting
from tests.v1.core.worker_memory import WorkerMemory, contents_of
from vllm.config import KVTransferConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput

MOST_WAIT = 12  # steps until a transfer ends
MOST_STEPS = 20_000


@dataclass
class Read:
    """A read that the decode side has asked for.

    Args:
        name: The request that waits.
        source: What the prefill side knows the blocks by.
        targets: Blocks to write.
        due: The step in which it ends.
        fails: Whether nothing is written.

    """

    name: str
    source: str
    targets: list[int]
    due: int
    fails: bool


@dataclass
class Side:
    """A scheduler, its worker's memory, and what the worker has to report."""

    driver: Driver
    memory: WorkerMemory
    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    invalid: set[int] = field(default_factory=set)

    def report(self) -> KVConnectorOutput:
        """Return what has ended since the last report."""
        output = KVConnectorOutput(
            finished_sending=self.sent or None,
            finished_recving=self.received or None,
            invalid_block_ids=self.invalid,
        )
        self.sent, self.received, self.invalid = set(), set(), set()
        return output


class TransferPair:
    """Conversations that are prefilled on one side and decoded on the other.

    Some requests are aborted on either side, some reads fail, some blocks expire
    before they are read, and some caches are reset meanwhile.

    Args:
        factory: Makes the schedulers.
        backend: The KV cache backend of both.
        connector: Its name.
        policy: What happens when a load fails.
        seed: Of all that is random.

    """

    def __init__(
        self,
        factory: SchedulerFactory,
        backend: str,
        connector: str,
        policy: str,
        seed: int,
    ):
        self.rng = random.Random(seed)
        self.connector = connector
        self.setting = Setting(90, block_size=4, token_budget=64)
        self.prefill, self.decode = (
            self._side(factory, backend, role, policy)
            for role in ("kv_producer", "kv_consumer")
        )
        self.prefill.driver.on_run = self._run_prefill
        self.decode.driver.on_run = self._run_decode
        self.seen: Counter[str] = Counter()
        self.hits: list[int] = []
        self._arrivals: dict[str, Arrival] = {}
        self._lengths: dict[int, int] = {}
        self._sendable: dict[str, tuple[str, list[int]]] = {}
        self._reads: list[Read] = []
        self._step = 0

    def _side(
        self, factory: SchedulerFactory, backend: str, role: str, policy: str
    ) -> Side:
        config = KVTransferConfig(
            kv_connector=self.connector,
            kv_role=role,
            kv_load_failure_policy=policy,
            engine_id=role,
        )
        driver = Driver(factory.make(self.setting, backend, config), self.setting)
        return Side(driver, WorkerMemory(self.setting, driver.conversations))

    def run(self, num_requests: int) -> None:
        """Let so many requests arrive and end."""
        while self._step < MOST_STEPS:
            self._step += 1
            if len(self._arrivals) < num_requests and self.rng.random() < 0.5:
                self._arrive(str(len(self._arrivals)))
            self._hand_over()
            self._disturb()
            self.prefill.driver.step()
            output = self.decode.driver.step()
            self.seen["preempted"] += len(output.preempted_req_ids or ())
            if len(self._arrivals) == num_requests and self._is_idle():
                return
        raise AssertionError("the requests do not come to an end")

    def _is_idle(self) -> bool:
        drivers = (self.prefill.driver, self.decode.driver)
        return not (
            self._reads
            or self._sendable
            or any(driver.scheduler.has_requests() for driver in drivers)
        )

    def _arrive(self, name: str) -> None:
        conversation = self.rng.randrange(10)
        length = self._lengths.get(conversation, self.rng.randrange(10, 50))
        self._lengths[conversation] = min(150, length + self.rng.randrange(5, 40))
        self._arrivals[name] = Arrival(conversation, length, self.rng.randrange(2, 30))
        transfer = {"do_remote_decode": True, "do_remote_prefill": False}
        transfer |= {"transfer_id": name} if self._is_mooncake else {}
        self.prefill.driver.add(
            name, Arrival(conversation, length, 1, transfer=transfer)
        )

    @property
    def _is_mooncake(self) -> bool:
        return self.connector == "MooncakeConnector"

    def _hand_over(self) -> None:
        """Send what is prefilled to the decode side, as a router does."""
        driver = self.prefill.driver
        for name in [name for name in driver.finished if name in self._arrivals]:
            arrival = self._arrivals[name]
            transfer = driver.transfers.get(name)
            is_sent = driver.finished[name] == "length" or transfer
            if not is_sent or name in self.decode.driver.tokens:
                continue
            if self._is_mooncake:
                transfer = {
                    "do_remote_prefill": True,
                    "do_remote_decode": False,
                    "remote_engine_id": "kv_producer",
                    "remote_bootstrap_addr": "nowhere",
                    "transfer_id": name,
                }
            elif transfer:
                (ids,) = transfer["remote_block_ids"]
                self._sendable[name] = (name, list(ids))
            self.decode.driver.add(
                name,
                Arrival(
                    arrival.conversation,
                    arrival.num_prompt_tokens,
                    arrival.max_tokens,
                    transfer=dict(transfer) if transfer else None,
                ),
            )

    def _disturb(self) -> None:
        if self._arrivals and self.rng.random() < 0.08:
            names = list(self._arrivals)[-12:]
            side = self.rng.choice((self.prefill, self.decode))
            name = self.rng.choice(names)
            if name in side.driver.tokens and name not in side.driver.finished:
                side.driver.abort(name)
                self.seen["aborted"] += 1
        if self.rng.random() < 0.02:
            side = self.rng.choice((self.prefill, self.decode))
            self.seen["resets"] += side.driver.scheduler.reset_prefix_cache()
        if self._sendable and self.rng.random() < 0.02:
            source = self.rng.choice(list(self._sendable))
            self._expire(source)

    def _expire(self, source: str) -> None:
        """Free blocks that were not read in time; whoever reads them fails."""
        name, _ = self._sendable.pop(source)
        self.prefill.sent.add(name)
        self.seen["expired"] += 1

    def _run_prefill(self, output: SchedulerOutput) -> KVConnectorOutput:
        self.prefill.memory.run(output)
        metadata = output.kv_connector_metadata
        if self._is_mooncake:
            for name, (source, groups) in metadata.reqs_to_send.items():
                if groups:
                    self._sendable[source] = (name, list(groups[0]))
        return self.prefill.report()

    def _run_decode(self, output: SchedulerOutput) -> KVConnectorOutput:
        self.decode.memory.run(output)
        for new in output.scheduled_new_reqs:
            self.hits.append(new.num_computed_tokens)
        for name, source, groups in self._asked(output.kv_connector_metadata):
            targets = list(groups[0]) if groups else []
            due = self._step + self.rng.randrange(1, MOST_WAIT)
            fails = bool(targets) and self.rng.random() < 0.1
            self._reads.append(Read(name, source, targets, due, fails))
        for read in [read for read in self._reads if read.due <= self._step]:
            self._reads.remove(read)
            self._end(read)
        return self.decode.report()

    def _asked(self, metadata) -> list[tuple[str, str, Sequence[Sequence[int]]]]:
        """Return the reads that a step begins."""
        if self._is_mooncake:
            return [
                (name, read.transfer_id, read.local_block_ids)
                for reads in metadata.reqs_to_recv.values()
                for name, read in reads.items()
            ]
        return [
            (name, read.remote.request_id, read.local_block_ids)
            for name, read in metadata.reqs_to_recv.items()
        ]

    def _end(self, read: Read) -> None:
        """End a read: its blocks are written, or named as invalid."""
        name, sources = self._sendable.pop(read.source, (None, []))
        if name is not None:
            self.prefill.sent.add(name)
        if not read.targets:
            self.seen["all there"] += 1
            return  # The prefill side is only told.
        if read.fails or name is None:
            self.seen["failed"] += 1
            self.decode.invalid |= set(read.targets)
        else:
            self._copy(read, sources[len(sources) - len(read.targets) :])
        self.decode.received.add(read.name)

    def _copy(self, read: Read, sources: list[int]) -> None:
        self.seen["read"] += 1
        prompt = self._arrivals[read.name]
        slots = self.prefill.memory.slots[sources]
        held = slots.reshape(-1)
        first = -(-prompt.num_prompt_tokens // self.setting.block_size) - len(sources)
        expected = contents_of(prompt.conversation)[: prompt.num_prompt_tokens]
        expected = expected[first * self.setting.block_size :]
        assert np.array_equal(held[: len(expected)], expected), (
            f"the blocks of {read.source} do not hold its prompt any more"
        )
        self.decode.memory.slots[read.targets] = slots
