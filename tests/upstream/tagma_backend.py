"""Run upstream's suites with the tagma manager in place of the paged one.

A pytest plugin, `-p tagma_backend`. Every manager that a test makes, of the KV cache
or of the chunks that are offloaded to the CPU, is a tagma one, unless tagma refuses its
configuration: then it is the paged one, and the test is counted apart. Without a GPU
the tests of offloading's worker copy in host memory. Tests named in
not_applicable.toml must fail, each for the reason given there: one that passes is
reported, and so is a name that no test has.
"""

import tomllib
from collections import Counter
from collections.abc import Generator
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import pytest

# Before the block tables, as the CPU worker does.
import vllm.v1.worker.cpu.shm  # noqa: F401
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_manager
from vllm.v1.core.tagma_block_pool import TagmaBlockPool
from vllm.v1.core.tagma_kv_cache_manager import (
    TagmaConnectorKVCacheManager,
    TagmaKVCacheManager,
)
from vllm.v1.kv_offload.cpu import host_copies
from vllm.v1.kv_offload.cpu import manager as cpu_offloading
from vllm.v1.kv_offload.cpu.tagma_manager import TagmaCPUOffloadingManager
from vllm.v1.tagma_refusals import UnsupportedByTagmaError

LIST = Path(__file__).with_name("not_applicable.toml")
# Share of the tests with a tagma manager that the list may name.
MOST_NOT_APPLICABLE = 0.1

# Tests that bind a pool of their own to a connector.
MAKE_POOLS = (
    "tests/v1/simple_kv_offload/test_kv_events.py",
    "tests/v1/simple_kv_offload/test_scheduler.py",
)

# Tests that copy, for which they have no GPU.
COPY = "tests/v1/kv_offload/cpu/test_gpu_worker.py"

PagedManager = kv_cache_manager.KVCacheManager


class Outcome(Enum):
    """How a test of upstream's ended."""

    PASSED = "passed with tagma"
    NOT_APPLICABLE = "not applicable"
    FAILED = "failed"
    REFUSED = "of configurations that tagma refuses"
    NO_MANAGER = "make no manager"
    SKIPPED = "skipped by upstream"


class SwappedManager(PagedManager):
    """Makes a tagma manager, or the paged one for what tagma refuses.

    The one for connectors, whose ids are lists, serves the suites without, too.
    """

    made: ClassVar[set[type]] = set()

    def __new__(cls, *args: Any, **kwargs: Any) -> PagedManager:
        """Make the manager that is to serve."""
        try:
            _refuse_context_parallelism(kwargs)
            manager = TagmaConnectorKVCacheManager(*args, **kwargs)
        except UnsupportedByTagmaError:
            manager = object.__new__(PagedManager)
            manager.__init__(*args, **kwargs)
        cls.made.add(type(manager))
        return manager


class SwappedOffloadingManager(TagmaCPUOffloadingManager):
    """The manager of CPU chunks in place of upstream's, which tells of itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        SwappedManager.made.add(type(self))


class SwappedPool(TagmaBlockPool):
    """The GPU's block pool that a test makes without a manager; tells of itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        SwappedManager.made.add(type(self))


def _refuse_context_parallelism(settings: dict[str, Any]) -> None:
    """Do what no manager does: the engine refuses it with its configuration."""
    sizes = settings.get("dcp_world_size", 1), settings.get("pcp_world_size", 1)
    if sizes != (1, 1):
        raise UnsupportedByTagmaError("context parallelism", f"{sizes}", "")


def read_list() -> dict[str, str]:
    """Return the reason of each test that does not apply, by its node id."""
    tables = tomllib.loads(LIST.read_text("utf-8"))["reason"]
    return {test: table["why"] for table in tables for test in table["tests"]}


# At import: upstream's conftest.py imports the scheduler.
kv_cache_manager.KVCacheManager = SwappedManager
cpu_offloading.CPUOffloadingManager = SwappedOffloadingManager


def pytest_configure(config: pytest.Config) -> None:
    """Count what happens, if the scheduler has the swapped manager."""
    from vllm.v1.core.sched import scheduler

    if scheduler.KVCacheManager is not SwappedManager:
        raise pytest.UsageError("the scheduler was imported before this plugin")
    config.pluginmanager.register(Suites(config), "tagma_suites")


class Suites:
    """Counts the outcomes and judges them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.listed = read_list()
        self.unknown: set[str] = set()
        self.outcomes: Counter[Outcome] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Expect the listed tests to fail."""
        modules = {item.nodeid.split("::")[0] for item in items}
        selected = {item.nodeid for item in items}
        self.unknown = {
            test
            for test in self.listed
            if test.split("::")[0] in modules and test not in selected
        }
        for item in items:
            if item.nodeid.startswith(MAKE_POOLS):
                item.module.BlockPool = SwappedPool
            if item.nodeid.startswith(COPY) and current_platform.is_cpu():
                item.module.CPUOffloadingWorker = host_copies.HostOffloadingWorker
            # It collects garbage for the GPU's sake, and takes most of the time.
            item.add_marker(pytest.mark.skip_global_cleanup)
            if item.nodeid in self.listed:
                reason = self.listed[item.nodeid]
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item
    ) -> Generator[None, object, object]:
        """Forget what the test before this one made."""
        SwappedManager.made.clear()
        with pytest.MonkeyPatch.context() as patch:
            if item.nodeid.startswith(COPY):
                patch.setenv(host_copies.VARIABLE, "0")
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome of a test."""
        if report.failed:
            self.outcomes[Outcome.FAILED] += 1
        elif report.skipped and hasattr(report, "wasxfail"):
            self.outcomes[Outcome.NOT_APPLICABLE] += 1
        elif report.skipped:
            self.outcomes[Outcome.SKIPPED] += 1
        elif report.when == "call":
            self.outcomes[_passed(SwappedManager.made)] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail for stale names and for too many tests that do not apply."""
        listed = self.outcomes[Outcome.NOT_APPLICABLE]
        exercised = listed + self.outcomes[Outcome.PASSED]
        too_many = listed > MOST_NOT_APPLICABLE * exercised
        if not self.config.option.keyword and (self.unknown or too_many):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print the counts."""
        for test in sorted(self.unknown):
            terminalreporter.write_line(f"no such test, remove it from {LIST}: {test}")
        for outcome in Outcome:
            terminalreporter.write_line(f"{self.outcomes[outcome]:5d} {outcome.value}")


def _passed(made: set[type]) -> Outcome:
    tagma = (TagmaKVCacheManager, TagmaCPUOffloadingManager, TagmaBlockPool)
    if any(issubclass(cls, tagma) for cls in made):
        return Outcome.PASSED
    return Outcome.REFUSED if made else Outcome.NO_MANAGER
