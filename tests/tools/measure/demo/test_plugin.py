"""The probe, loaded by Python as vLLM loads it."""

import subprocess
import sys
from pathlib import Path

from tools.measure.demo.measured import HeldBlocks
from tools.measure.demo.plugin import Probe

SCHEDULER = """\
class Manager:
    def get_block_ids(self, request_id):
        return ([4, 5, 9] if request_id == "a" else [],)


class Scheduler:
    def __init__(self):
        self.kv_cache_manager, self.given_back = Manager(), []

    def _free_request_blocks(self, request):
        self.given_back.append(request.request_id)
"""

USE = """\
from importlib.metadata import entry_points
from types import SimpleNamespace
from vllm.v1.core.sched.scheduler import Scheduler

for _ in range(2):
    for plugin in entry_points(group="vllm.general_plugins"):
        if plugin.name == "tagma_probe":
            plugin.load()()
scheduler = Scheduler()
for name in "aba":
    scheduler._free_request_blocks(SimpleNamespace(request_id=name))
assert scheduler.given_back == ["a", "b", "a"], scheduler.given_back
"""


def test_the_plugin_is_found_and_counts_each_release_once(tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm" / "v1" / "core" / "sched"
    package.mkdir(parents=True)
    (package / "scheduler.py").write_text(SCHEDULER)
    probe = Probe(tmp_path / "probe")
    probe.install()
    env = probe.environment({"PYTHONPATH": str(tmp_path / "site")})
    assert probe.take() == ()
    subprocess.run([sys.executable, "-c", USE], env=env, check=True)
    assert probe.take() == (HeldBlocks("a", 3, 2), HeldBlocks("a", 3, 2))
    assert probe.take() == ()
