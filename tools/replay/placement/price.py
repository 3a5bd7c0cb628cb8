"""What copies cost a device, computed from its bandwidth."""

from dataclasses import dataclass

# Bytes a second: NVIDIA's data sheet of the H100 SXM has 3.35 TB/s of HBM3.
_BANDWIDTH = 3.35e12
# What a copy reaches of that; assumed.
_REACHED = 0.7
_BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Model:
    """A model's KV cache on one GPU.

    Args:
        name: The model and its parallelism.
        layers: How many there are.
        kv_heads: Of each, on one GPU.
        head_size: Elements of two bytes.
    """

    name: str
    layers: int
    kv_heads: int
    head_size: int

    @property
    def block_bytes(self) -> int:
        """Keys and values of a block of 16 tokens, two bytes an element."""
        return self.layers * 2 * self.kv_heads * self.head_size * 2 * _BLOCK_TOKENS

    def microseconds(self, blocks: float) -> float:
        """Return how long copies take on an H100.

        Each byte is read and written: 2 · blocks · block_bytes / (0.7 · 3.35 TB/s).
        The bandwidth is the data sheet's (H100 SXM); 0.7 of it is an assumption,
        and launches are left out. Computed, nothing here has run on a GPU.
        """
        return 2 * blocks * self.block_bytes / (_REACHED * _BANDWIDTH) * 1e6


# Llama 3's shapes: 8 KV heads of 128, which tensor parallelism divides.
MODELS = (Model("8B", 32, 8, 128), Model("70B, TP 4", 80, 2, 128))
