"""The pytest suites: of the tools, of the overlays, and upstream's with tagma."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tools.base.process import run, run_visibly
from tools.base.project import Project
from tools.compile import beside
from tools.tree import overlay

# Upstream's suites of the scheduler, of its KV cache, of its connectors and of
# offloading.
_CORE = (
    "test_prefix_caching.py",
    "test_scheduler.py",
    "test_async_scheduler.py",
    "test_deferred_block_free.py",
    "test_single_type_kv_cache_manager.py",
    "test_priority_preemption_bug.py",
    "test_prefix_replay.py",
    "test_kv_cache_metrics.py",
    "test_swa_inflight_window_free.py",
    "test_worker_slot_overflow.py",
)
_CONNECTOR = (
    "test_cache_pollution_prevention.py",
    "test_error_propagation.py",
    "test_invalid_blocks_correctness.py",
    "test_kv_connector_lifecycle.py",
    "test_kv_load_failure_recovery.py",
    "test_mooncake_store_scheduler.py",
    "test_remote_decode_lifecycle.py",
    "test_remote_prefill_lifecycle.py",
    "offloading_connector/test_canonical_mapping.py",
    "offloading_connector/test_config.py",
    "offloading_connector/test_events.py",
    "offloading_connector/test_metrics.py",
    "offloading_connector/test_scheduler.py",
    "offloading_connector/test_worker.py",
    "offloading_connector/test_worker_metadata.py",
)
_TIERS = (
    *("async_lookup", "backpressure", "factory", "fs_tier", "metrics", "obj_tier"),
    "tiering_offloading",
)
# Not those that only a GPU can run: cpu/test_swap_blocks_*.py, test_worker.py and
# test_integration.py; nor tiering/test_kvcr_tier.py, which needs a package for GPUs.
_OFFLOADING = (
    "kv_offload/test_factory.py",
    "kv_offload/test_file_mapper.py",
    "kv_offload/cpu/test_canonical_layout.py",
    "kv_offload/cpu/test_gpu_worker.py",
    "kv_offload/cpu/test_manager.py",
    "kv_offload/cpu/test_shared_offload_region.py",
    "kv_offload/cpu/policies/test_factory.py",
    *(f"kv_offload/tiering/test_{name}.py" for name in _TIERS),
    "kv_offload/tiering/p2p/test_data_transport.py",
    "kv_offload/tiering/p2p/test_manager.py",
    "kv_offload/tiering/p2p/test_sessions.py",
    "kv_offload/tiering/p2p/test_zmq_transport.py",
    "simple_kv_offload/test_hip_mem_ops.py",
    "simple_kv_offload/test_kv_events.py",
    "simple_kv_offload/test_scheduler.py",
)
UPSTREAM = (
    *(f"tests/v1/core/{name}" for name in _CORE),
    *(f"tests/v1/kv_connector/unit/{name}" for name in _CONNECTOR),
    *(f"tests/v1/{name}" for name in _OFFLOADING),
)
# They give processes 30 s to import vLLM, and fail or hang where that is too short.
_REGION = "tests/v1/kv_offload/cpu/test_shared_offload_region.py"
_LEFT_OUT = (
    "test_create_next_worker_view_multiprocess_slots",
    "test_multiprocess_race_construct_and_write",
    "test_mp_barrier_unlinks_file_and_survives_sigkill",
)


class Name(Enum):
    """The suites; the value is the name on the command line."""

    TOOLS = "tools"
    OVERLAY = "overlay"
    UPSTREAM = "upstream"


@dataclass(frozen=True)
class Suite:
    """Tests that are ready to run.

    Args:
        python: The interpreter that has pytest and what they import.
        folder: Where they run.
        arguments: Options and files, for pytest.
        variables: What the environment has beside ours.
    """

    python: Path
    folder: Path
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, workers: int, words: tuple[str, ...], *, to_stderr: bool) -> int:
        """Run the tests and return pytest's status.

        Args:
            workers: Processes to spread the tests over.
            words: More arguments for pytest.
            to_stderr: Send what pytest says to standard error.
        """
        return run_visibly(
            [
                *(self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *spread(workers),
                *self.arguments,
                *words,
            ],
            cwd=self.folder,
            env=os.environ | dict(self.variables),
            to_stderr=to_stderr,
        )


def spread(workers: int) -> tuple[str, ...]:
    """Return pytest's options for a number of processes.

    Tests of one module, which may share what takes long to make, stay together.
    """
    return ("-n", str(workers), "--dist", "loadscope") if workers > 1 else ()


def of_tools(project: Project) -> Suite:
    """Return the suite of the tools, in their own environment."""
    return Suite(Path(sys.executable), project.root, ("tests/tools",))


def of_overlays(project: Project, python: Path) -> Suite:
    """Return the suite of manager and kernels, with the installed wheel.

    Args:
        project: The project, with an applied tree.
        python: That of the environment that serves.
    """
    folder = _beside(project, "overlay-tests")
    variables = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(folder)}
    arguments = (*_upstreams_settings(project), *overlay.tests(project.root))
    return Suite(python, folder, arguments, variables)


def of_upstream(project: Project, python: Path) -> Suite:
    """Return upstream's own suites, unmodified, with the tagma manager behind them.

    tests/upstream/tagma_backend.py swaps it in and counts.

    Args:
        project: The project, with an applied tree. The caller holds its lock.
        python: That of the environment that serves.

    Raises:
        ToolError: What these suites need beside it cannot be installed.
    """
    folder = _beside(project, "upstream-tests")
    site, hub = folder / "site", folder / "hf"
    _install(project, python, site)
    programs = project.root / "tests" / "upstream"
    env = os.environ | {"PYTHONPATH": str(site)}
    run([python, programs / "make_hub.py", hub], env=env)
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, (folder, site, programs))),
        "HF_HOME": str(hub),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    plugin, settings = ("-p", "tagma_backend"), _upstreams_settings(project)
    left_out = (f"--deselect={_REGION}::{name}" for name in _LEFT_OUT)
    arguments = (*plugin, *settings, *left_out, *UPSTREAM)
    return Suite(python, folder, arguments, variables)


def _beside(project: Project, name: str) -> Path:
    """Return a folder with upstream's tests, a package of its tree.

    Beside the tree's own vllm/ they would import that instead of the installed one.
    """
    folder = project.build / name
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "tests"
    link.unlink(missing_ok=True)
    link.symlink_to(project.tree / "tests")
    return folder


def _upstreams_settings(project: Project) -> tuple[str, ...]:
    return ("-c", str(project.tree / "pyproject.toml"), "--rootdir", ".")


def _install(project: Project, python: Path, site: Path) -> None:
    """Install what upstream's suites need beside the serving environment."""
    beside.install(project, python, "suites", site)
    # Its operators want CUDA. Nothing here runs them, but their shape rules would
    # fail at import for the lack of them.
    (site / "torchvision" / "_meta_registrations.py").write_text("")
