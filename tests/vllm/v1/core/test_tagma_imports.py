# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Who imports whom among the modules of the "tagma" backend, and when."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vllm
from tests.v1.core.scheduler_driver import write_model_config

pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]

PACKAGE = Path(vllm.__file__).parent
# The backend's modules that do not have its name.
UNNAMED = ("kv_cache_backend.py", "block_moves.py", "block_ranges.py", "range_table.py")


def backend_modules() -> dict[str, Path]:
    """The file of each module of the backend that is written in Python."""
    files = [
        file
        for file in PACKAGE.rglob("*.py")
        if "tagma" in file.name or file.name in UNNAMED
    ]
    return {
        ".".join(("vllm", *file.relative_to(PACKAGE).with_suffix("").parts)): file
        for file in files
    }


def imported(node: ast.AST) -> Iterator[str]:
    """Yield what is imported, in functions too, but for type checkers alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.module and not node.level
        yield node.module
        # A name that is imported may be a module's.
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def imports_among(modules: dict[str, Path]) -> dict[str, set[str]]:
    return {
        name: set(imported(ast.parse(file.read_text()))) & modules.keys()
        for name, file in modules.items()
    }


def test_no_module_imports_itself_by_way_of_others():
    graph = imports_among(backend_modules())
    assert "vllm.v1.tagma_refusals" in graph["vllm.v1.kv_cache_backend"]
    assert len(graph) > len(UNNAMED)
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"imports in a circle: {' <- '.join(error.args[1])}")


SERVES_PAGED = """
import sys

import vllm.v1.worker.cpu.shm  # before the block tables, as the CPU worker does
import vllm.v1.worker.gpu.model_runner
import vllm.v1.worker.gpu.block_table
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched import scheduler
from vllm.v1.kv_cache_backend import *

config = EngineArgs(
    model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True
).create_engine_config()
assert kv_cache_manager_cls(config, KVCacheManager) is KVCacheManager
assert block_tables_cls(config, object) is object
assert "Tagma" not in type(make_block_mover(config, [], 0, None)).__name__
assert take_kv_cache_stats(config.cache_config, None) is None
assert kv_cache_stat_loggers(config, []) == []
print("imported:", [name for name in sys.modules if "tagma" in name])
"""


def test_with_paged_no_module_of_the_backend_is_imported(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", SERVES_PAGED, write_model_config(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "imported: []" in done.stdout, done.stdout + done.stderr
