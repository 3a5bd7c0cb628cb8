"""First fit and best fit."""

from abc import abstractmethod
from bisect import bisect_left, insort

from tools.replay.extents import ExtentPolicy, RangeList


class FitPolicy(ExtentPolicy):
    """Free extents, always merged with their neighbours, in a sorted list."""

    def __init__(self, num_blocks: int) -> None:
        self._lengths: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._sorted: list[tuple[int, int]] = []
        super().__init__(num_blocks)

    @staticmethod
    @abstractmethod
    def _key(start: int, length: int) -> tuple[int, int]:
        """Return where in the list an extent belongs."""

    @abstractmethod
    def _fitting(self, count: int) -> int | None:
        """Return the start of the extent to use; None: none is long enough."""

    def _insert(self, start: int, count: int) -> None:
        end = start + count
        if end in self._lengths:
            end += self._drop(end)
        if start in self._starts:
            start -= self._drop(self._starts[start])
        self._add(start, end - start)

    def _place(self, held: RangeList, count: int) -> list[tuple[int, int]]:
        placed = []
        start: int | None = held.end if held.end in self._lengths else None
        while count:
            if start is None:
                start = self._fitting(count)
            if start is None:
                start = max(self._lengths, key=self._lengths.__getitem__)
            length = self._drop(start)
            taken = min(count, length)
            if taken < length:
                self._add(start + taken, length - taken)
            self._num_empty -= taken
            placed.append((start, taken))
            count -= taken
            start = None
        return placed

    def _add(self, start: int, length: int) -> None:
        self._lengths[start] = length
        self._starts[start + length] = start
        insort(self._sorted, self._key(start, length))

    def _drop(self, start: int) -> int:
        """Remove an extent and return its length."""
        length = self._lengths.pop(start)
        del self._starts[start + length]
        del self._sorted[bisect_left(self._sorted, self._key(start, length))]
        return length


class FirstFit(FitPolicy):
    """The extent with the lowest address."""

    @staticmethod
    def _key(start: int, length: int) -> tuple[int, int]:
        return start, length

    def _fitting(self, count: int) -> int | None:
        return next((start for start, n in self._sorted if n >= count), None)


class BestFit(FitPolicy):
    """The shortest extent, and of equals the one with the lowest address."""

    @staticmethod
    def _key(start: int, length: int) -> tuple[int, int]:
        return length, start

    def _fitting(self, count: int) -> int | None:
        index = bisect_left(self._sorted, (count, 0))
        return self._sorted[index][1] if index < len(self._sorted) else None
