# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Time copies of KV cache blocks on a GPU: upstream's beside tagma's.

    python bench_block_copies.py PACKAGE

takes both from the folder PACKAGE (`vllm`), needs torch and Triton and nothing else of
vLLM, and prints JSON; {"skipped": reason} where there is no GPU. With --dry-run the
same steps run on tiny cases in Triton's interpreter, on the CPU.

The blocks are those of an 8B model: 32 layers with a storage each, 64 KiB of a block
in each of them. A time is the median of whole calls, on the device, as in
bench_block_tables.py; the host's part shows only where it takes longer than the flush
of the L2 cache before it. Both take turns, and must agree before they are timed.
"""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from bench_block_tables import Clock, main
from kernel_code import load_kernels

BLOCKS = (1, 16, 256, 2048)
ORDERS = ("together", "apart")


@dataclass(frozen=True)
class Case:
    """So many blocks that are copied into a window.

    Args:
        blocks: How many.
        order: They lie "together", in the window's order, or "apart" from each other.

    """

    blocks: int
    order: str

    def copies(self) -> list[tuple[int, int]]:
        """Return copies of (source, target); blocks from `blocks` on are sources."""
        import numpy as np

        sources = np.arange(self.blocks, 2 * self.blocks)
        if self.order == "apart":
            sources = np.random.default_rng(0).permutation(sources)
        return list(zip(sources.tolist(), range(self.blocks)))


@dataclass(frozen=True)
class Pool:
    """The KV cache.

    Args:
        layers: How many.
        page_bytes: Bytes of a block in one of them.
        most_blocks: The most that are copied.

    """

    layers: int
    page_bytes: int
    most_blocks: int

    def caches(self, torch: Any, device: str) -> list[Any]:
        """Return the layers' caches, [2 * most_blocks, page_bytes / 4] each."""
        words = self.page_bytes // 4
        shape = (2 * self.most_blocks, words)
        kind = {"dtype": torch.int32, "device": device}
        return [torch.randint(2**31 - 1, shape, **kind) for _ in range(self.layers)]


def modules(package: Path, folder: Path) -> tuple[ModuleType, Callable[..., None]]:
    """Return the module of `BlockCopier`, and upstream's copy.

    What they import from vLLM is replaced: it need not be installed.
    """
    import numpy as np
    import torch
    import triton
    import triton.language as tl

    def async_tensor_h2d(data: Any, device: Any) -> Any:
        host = torch.from_numpy(data)
        host = host.pin_memory() if torch.cuda.is_available() else host
        return host.to(device, non_blocking=True)

    worker = package / "v1" / "worker"
    kernels = load_kernels(worker / "gpu", folder)
    for name, attributes in {
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.utils.torch_utils": {"async_tensor_h2d": async_tensor_h2d},
        "vllm.v1.worker.gpu.tagma_kernels": vars(kernels),
    }.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(attributes)
    file = worker / "gpu" / "tagma_block_copier.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    copier = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copier)

    name = "copy_kv_cache_blocks_inplace"
    (function,) = (
        node
        for node in ast.parse((worker / "utils.py").read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    namespace = {
        "np": np,
        "torch": torch,
        "async_tensor_h2d": async_tensor_h2d,
        "Iterable": Iterable,
        "Sequence": Sequence,
        "KVCacheBlockCopy": tuple,
    }
    exec(ast.unparse(function), namespace)
    return copier, namespace[name]


def run(package: Path, folder: Path, count: int, dry: bool) -> dict[str, Any]:
    """Run all cases and return what was measured."""
    import torch
    import triton

    pool = Pool(2, 64, 3) if dry else Pool(32, 64 << 10, max(BLOCKS))
    copier_module, upstreams_copy = modules(package, folder)
    caches = pool.caches(torch, "cpu" if dry else "cuda")
    copier = copier_module.BlockCopier(caches, len(caches[0]))
    clock = Clock(torch, on_gpu=not dry)
    timings = []
    for blocks, order in product((1, 3) if dry else BLOCKS, ORDERS):
        copies = Case(blocks, order).copies()
        calls = {
            "upstream": lambda c=copies: upstreams_copy(caches, len(caches[0]), c),
            "tagma": lambda c=copies: copier.copy(c),
        }
        results = {}
        for name, call in calls.items():
            for cache in caches:
                cache[:blocks] = 0
            call()
            results[name] = [cache[:blocks].clone() for cache in caches]
        if not all(map(torch.equal, *results.values())):
            sys.exit(f"tagma differs from upstream in {Case(blocks, order)}")
        del results
        timings += [
            {
                **asdict(Case(blocks, order)),
                "kernel": name,
                "launches": count,
                "median_us": us,
                # Every byte is read and written.
                "bytes_moved": 2 * blocks * pool.layers * pool.page_bytes,
            }
            for name, us in clock.time(calls, count).items()
        ]
    return {
        "device": "interpreter" if dry else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "bandwidth_gb_s": clock.bandwidth(),
        "timings": timings,
    }


if __name__ == "__main__":
    main(run, __doc__)
