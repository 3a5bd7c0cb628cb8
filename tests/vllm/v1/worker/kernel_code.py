# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Compile the backend's kernels for GPUs, without one, and count instructions.

    python kernel_code.py PACKAGE 80 90

prints what the kernels in the folder PACKAGE (`vllm`) become for sm_80 and sm_90,
as JSON. It imports Triton alone, and nothing of vLLM, whose Triton is a placeholder
where there is no GPU. TRITON_INTERPRET must not be set.
"""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

BLOCK_SIZE = 1024

_FILES = ("buffer_utils.py", "block_table.py", "tagma_kernels.py")

# Arguments as the callers in `BlockTables`, `TagmaBlockTables` and `BlockCopier` pass
# them.
_POINTERS = {
    "idx_mapping": "*i32",
    "batch_idx_to_req_idx": "*i32",
    "query_start_loc": "*i32",
    "pos": "*i64",
    "range_table_ptr": "*i32",
    "block_table_ptrs": "*u64",
    "src_block_table_ptrs": "*u64",
    "dst_block_table_ptrs": "*u64",
    "block_table_strides": "*i64",
    "block_sizes": "*i32",
    "num_blocks_ptr": "*i32",
    "slot_mapping_enabled": "*i1",
    "dcp_sharded": "*i1",
    "slot_mappings_ptr": "*i64",
    "segment_addresses": "*i64",
    "segment_strides": "*i64",
    "segment_lengths": "*i64",
    "plan_ptr": "*i32",
    # From 0.33.0 on.
    "num_computed_tokens_ptr": "*i32",
    "sliding_window_reach_ptr": "*i32",
    "block_sizes_ptr": "*i32",
}
_CONSTANTS = {
    "CP_SIZE": 1,
    "CP_INTERLEAVE": 1,
    "PAD_ID": -1,
    "TRITON_BLOCK_SIZE": BLOCK_SIZE,
    "BLOCK_SIZE": BLOCK_SIZE,
    "MASK_SLIDING_WINDOW": False,
}


@dataclass(frozen=True)
class Variant:
    """A kernel, and those of its constants that are its own."""

    label: str
    kernel: str
    constants: Mapping[str, Any] = field(default_factory=dict)


_SLOTS = "_compute_slot_mappings_tagma_kernel"
_EXPAND = "_expand_ranges_to_block_table_kernel"
_FALLBACK, _NO_FALLBACK = {"HAS_FALLBACK": True}, {"HAS_FALLBACK": False}

VARIANTS = (
    Variant("slots, paged", "_compute_slot_mappings_kernel"),
    Variant("slots, tagma", _SLOTS, _NO_FALLBACK),
    Variant("slots, tagma + fallback", _SLOTS, _FALLBACK),
    Variant("block table, paged gather", "_gather_block_tables_kernel"),
    Variant("block table, tagma", _EXPAND, _NO_FALLBACK),
    Variant("block table, tagma + fallback", _EXPAND, _FALLBACK),
    # As for a model of 32 layers, whose numbers are all multiples of 16 bytes.
    Variant(
        "block copy, tagma",
        "_copy_blocks_kernel",
        {"NUM_SEGMENTS": 32, "VECTOR": 4, "VECTOR_BYTES": 16, "BLOCK_SIZE": 2048},
    ),
)


@dataclass(frozen=True)
class KernelCode:
    """What a variant becomes.

    `table_loads` counts the loads of a whole tile of int32 in TTGIR: one is one
    table load per position, or per block. The other counts are of instructions in
    the program's text, not of how often they run: global loads and stores in PTX and
    SASS; registers of a thread; loads and stores of spilled registers in SASS.
    """

    label: str
    arch: int
    table_loads: int
    ptx_loads: int
    ptx_stores: int
    sass_loads: int
    sass_stores: int
    registers: int
    spills: int


def compile_variants(package: Path, archs: Sequence[int]) -> list[KernelCode]:
    """Compile every variant for every compute capability, such as 90."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = load_kernels(package / "v1" / "worker" / "gpu", Path(folder))
        return [
            _compile(getattr(kernels, variant.kernel), variant, arch, Path(folder))
            for arch in archs
            for variant in VARIANTS
        ]


def load_kernels(sources: Path, folder: Path) -> ModuleType:
    """Return a module of all functions with `@triton.jit` in the sources."""
    functions: dict[str, str] = {}
    for name in _FILES:
        text = (sources / name).read_text("utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and any(
                "triton.jit" in ast.unparse(d) for d in node.decorator_list
            ):
                begin = node.decorator_list[0].lineno - 1
                functions[node.name] = "\n".join(lines[begin : node.end_lineno])
    file = folder / "extracted_kernels.py"
    header = "import triton\nimport triton.language as tl"
    file.write_text("\n\n\n".join([header, *functions.values()]) + "\n", "utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(kernel, variant: Variant, arch: int, folder: Path) -> KernelCode:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {**_CONSTANTS, "ELEMENT": tl.int32, **variant.constants}
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={
            name: "constexpr" if name in constants else _POINTERS.get(name, "i32")
            for name in names
        },
        constexprs={name: constants[name] for name in names if name in constants},
        # Tensors are aligned, which the launcher finds out by itself.
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if name in _POINTERS
        },
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32))
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    sass = _cuobjdump("--dump-sass", cubin)
    usage = re.search(r"REG:(\d+)", _cuobjdump("--dump-resource-usage", cubin))
    assert usage
    ptx = compiled.asm["ptx"]
    return KernelCode(
        label=variant.label,
        arch=arch,
        table_loads=_count(
            rf"tt\.load .*tensor<{BLOCK_SIZE}x!tt\.ptr<i32>", compiled.asm["ttgir"]
        ),
        ptx_loads=_count(r"\bld\.global", ptx),
        ptx_stores=_count(r"\bst\.global", ptx),
        sass_loads=_count(r"\bLDG\b", sass),
        sass_stores=_count(r"\bSTG\b", sass),
        registers=int(usage[1]),
        spills=_count(r"\b(LDL|STL)\b", sass),
    )


def _cuobjdump(option: str, cubin: Path) -> str:
    from triton import knobs

    done = subprocess.run(
        [knobs.nvidia.cuobjdump.path, option, cubin],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def _count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


def main() -> None:
    import triton

    package, *archs = sys.argv[1:]
    compiled = compile_variants(Path(package), [int(arch) for arch in archs])
    codes = [asdict(code) for code in compiled]
    json.dump({"triton": triton.__version__, "kernels": codes}, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
