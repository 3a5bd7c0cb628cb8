"""The buddy system."""

from tools.replay.extents import ExtentPolicy, RangeList


class Buddy(ExtentPolicy):
    """The binary buddy system.

    A request gets chunks of a power of two: the first as large as what it asks
    for, later ones up to four times that, but at most as large as all it has. The
    rest of a chunk is set aside for its growth until it ends. Freed blocks merge
    with their buddies one by one, since cached ones stay behind.
    """

    _GROWTH = 4

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._chunks: list[dict[int, None]] = [
            {} for _ in range(num_blocks.bit_length())
        ]
        super().__init__(num_blocks)

    def _insert(self, start: int, count: int) -> None:
        end = start + count
        while start < end:
            order = (end - start).bit_length() - 1
            if start:
                order = min(order, (start & -start).bit_length() - 1)
            self._merge(start, order)
            start += 1 << order

    def _merge(self, start: int, order: int) -> None:
        while order + 1 < len(self._chunks):
            buddy = start ^ (1 << order)
            if buddy not in self._chunks[order]:
                break
            del self._chunks[order][buddy]
            start = min(start, buddy)
            order += 1
        self._chunks[order][start] = None

    def _place(self, held: RangeList, count: int) -> list[tuple[int, int]]:
        placed = []
        while count:
            wanted = count
            if held.num_blocks:
                wanted = max(count, min(held.num_blocks, self._GROWTH * count))
            start, length = self._split((wanted - 1).bit_length())
            self._num_empty -= length
            taken = min(count, length)
            placed.append((start, taken))
            held.room = length - taken
            count -= taken
        return placed

    def _split(self, order: int) -> tuple[int, int]:
        """Take a chunk of the order, or of the largest one there is below."""
        orders = range(len(self._chunks))
        found = next((o for o in orders[order:] if self._chunks[o]), None)
        if found is None:
            order = next(o for o in reversed(orders[:order]) if self._chunks[o])
            found = order
        start, _ = self._chunks[found].popitem()
        for smaller in range(found - 1, order - 1, -1):
            self._chunks[smaller][start + (1 << smaller)] = None
        return start, 1 << order
