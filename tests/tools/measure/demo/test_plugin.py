"""The plugins, loaded by Python as vLLM loads them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.measure.demo.measured import CopyingStep, HeldBlocks, Recorded
from tools.measure.demo.plugin import Probe

SCHEDULER = """\
from types import SimpleNamespace


class Manager:
    def get_block_ids(self, request_id):
        return ([4, 5, 9] if request_id == "a" else [],)


class Scheduler:
    def __init__(self):
        self.kv_cache_manager, self.given_back = Manager(), []

    def _free_request_blocks(self, request):
        self.given_back.append(request.request_id)

    def schedule(self, copies):
        return SimpleNamespace(kv_cache_block_copies=copies)

    def update_from_output(self, scheduler_output, model_runner_output):
        return "outputs"
"""

PLATFORM = """\
class CpuPlatform:
    is_on_cpu = True

    def is_cpu(self):
        return self.is_on_cpu

    @classmethod
    def check_and_update_config(cls, config):
        config.checked_by = cls
        config.scheduler_config.async_scheduling = False


current_platform = CpuPlatform()
"""

LOAD = """\
import os
from importlib.metadata import entry_points
from types import SimpleNamespace

for _ in range(2):
    for plugin in entry_points(group="vllm.general_plugins"):
        if plugin.name in os.environ["VLLM_PLUGINS"].split(","):
            plugin.load()()
"""

GIVE_BACK = """\
from vllm.v1.core.sched.scheduler import Scheduler

scheduler = Scheduler()
for name in "aba":
    scheduler._free_request_blocks(SimpleNamespace(request_id=name))
assert scheduler.given_back == ["a", "b", "a"], scheduler.given_back
"""

COPY = """\
from vllm.v1.core.sched.scheduler import Scheduler

scheduler = Scheduler()
assert scheduler.schedule([(1, 2)]).kv_cache_block_copies == [(1, 2)]
scheduler.schedule(None)
scheduler.schedule([(2, 3), (3, 4)])
for _ in range(3):
    assert scheduler.update_from_output(None, None) == "outputs"
scheduler.schedule(copies=[(1, 2)])
"""

CHECK = """\
from vllm.platforms import current_platform

scheduler_config = SimpleNamespace(async_scheduling=True)
config = SimpleNamespace(scheduler_config=scheduler_config)
current_platform.check_and_update_config(config)
assert config.checked_by is type(current_platform)
assert scheduler_config.async_scheduling is current_platform.is_cpu()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Stand-ins for the parts of vLLM that the plugins wrap."""
    vllm = tmp_path / "site" / "vllm"
    scheduler = vllm / "v1" / "core" / "sched"
    scheduler.mkdir(parents=True)
    (scheduler / "scheduler.py").write_text(SCHEDULER)
    (vllm / "platforms.py").write_text(PLATFORM)
    return tmp_path / "site"


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    made = Probe(tmp_path / "probe", "probe", "asynchronous")
    made.install()
    return made


def load_and_use(probe: Probe, site: Path, use: str) -> None:
    env = probe.environment({"PYTHONPATH": str(site)})
    subprocess.run([sys.executable, "-c", LOAD + use], env=env, check=True)


def test_each_release_is_counted_once(probe: Probe, site: Path) -> None:
    assert probe.take() == Recorded((), ())
    load_and_use(probe, site, GIVE_BACK)
    held = (HeldBlocks("a", 3, 2), HeldBlocks("a", 3, 2))
    assert probe.take() == Recorded(held, ())
    assert probe.take() == Recorded((), ())


def test_copies_are_recorded_with_the_steps_under_way(probe: Probe, site: Path) -> None:
    load_and_use(probe, site, COPY)
    steps = (CopyingStep(1, 0), CopyingStep(2, 2), CopyingStep(1, 0))
    assert probe.take() == Recorded((), steps)


def test_a_cpu_keeps_the_scheduling_that_was_asked_for(
    probe: Probe, site: Path
) -> None:
    load_and_use(probe, site, CHECK)


def test_another_platform_has_its_own_way(probe: Probe, site: Path) -> None:
    platforms = site / "vllm" / "platforms.py"
    platforms.write_text(PLATFORM.replace("is_on_cpu = True", "is_on_cpu = False"))
    load_and_use(probe, site, CHECK)
