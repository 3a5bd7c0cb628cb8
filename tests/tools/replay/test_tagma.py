"""The replayed engine: contents go where it copies them, and older builds of it."""

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tools.compile.extension import load
from tools.replay.case import Synthetic
from tools.replay.paged import Paged
from tools.replay.simulator import Simulator
from tools.replay.tagma import Tagma
from tools.replay.workload import WORKLOADS


class CarriedContents(Tagma):
    """The engine, and what is in each block of a device that makes its copies.

    A block's content is the hash under which it was made known. It is written when
    its step has made its copies, and must be in each block of a hit then.
    """

    def __init__(self, module: ModuleType, num_blocks: int) -> None:
        super().__init__(module, num_blocks)
        self.contents: list[bytes | None] = [None] * num_blocks
        self.computed: dict[int, bytes] = {}
        self.admitted: list[Any] = []
        self.num_hit = self.num_copied = 0

    def admit(self, hit: Any) -> Any:
        held = super().admit(hit)
        self.admitted.append((held, hit.num_blocks))
        return held

    def cache(self, held: Any, start: int, stop: int) -> None:
        super().cache(held, start, stop)
        ids = held.ranges.block_ids(start, stop)
        self.computed |= zip(ids, held.hashes[start:stop], strict=True)

    def take_copies(self) -> list[tuple[int, int]]:
        copies = super().take_copies()
        read = [(target, self.contents[source]) for source, target in copies]
        for target, content in read:
            self.contents[target] = content
        for block, content in self.computed.items():
            self.contents[block] = content
        for held, count in self.admitted:
            ids = held.ranges.block_ids(0, min(count, held.num_blocks))
            found = [self.contents[block] for block in ids]
            assert found == held.hashes[: len(ids)]
            self.num_hit += len(ids)
        self.computed.clear()
        self.admitted.clear()
        self.num_copied += len(copies)
        return copies


@pytest.fixture
def replay(engine: Path) -> Callable[..., Any]:
    case = Synthetic(WORKLOADS[0], True, 16, 0.9, "tagma", 0, 8, 20)

    def replay(kind: Callable[[ModuleType, int], Any], bound: float = math.inf) -> Any:
        pool = kind(load(engine), case.setting.num_blocks)
        if isinstance(pool, CarriedContents):
            pool.bound_copies(bound)
        Simulator(pool, case.source(), case.setting).run()
        return pool

    return replay


@pytest.mark.parametrize("bound", [math.inf, 256, 0])
def test_a_hit_finds_its_content_where_the_copies_have_put_it(
    replay: Callable[..., Any], bound: float
) -> None:
    pool = replay(CarriedContents, bound)
    assert pool.num_hit > 1000
    assert (pool.num_copied > 1000) == (bound > 0)


def test_an_engine_that_moves_nothing_is_replayed_without_steps(
    replay: Callable[..., Any],
) -> None:
    """A build of the engine as it was can be compared with this one."""

    class Allocator:
        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, name: str) -> Any:
            if name in ("begin_step", "process_step", "take_copies"):
                raise AttributeError(name)
            return getattr(self.real, name)

    def without_steps(real: Any, num_blocks: int) -> Tagma:
        module: Any = SimpleNamespace(
            OutOfBlocksError=real.OutOfBlocksError,
            KVAllocator=lambda *args, **kwargs: Allocator(
                real.KVAllocator(*args, **kwargs)
            ),
            PrefixIndex=lambda allocator, **kwargs: real.PrefixIndex(
                allocator.real, **kwargs
            ),
        )
        return Tagma(module, num_blocks)

    pool, paged = replay(without_steps), replay(lambda _, size: Paged(size))
    assert pool.removed.count == paged.removed.count > 1000
