"""The probe as a plugin of vLLM, and what it recorded."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools import inside
from tools.measure.demo.measured import HeldBlocks


class Probe:
    """The plugin that records runs, installed in a folder for PYTHONPATH.

    Args:
        folder: Where; nothing else may be in it.
        program: The module of `tools.inside` that is the plugin.
    """

    def __init__(self, folder: Path, program: str = "probe"):
        self.folder = folder
        self.program = inside.FOLDER / f"{program}.py"
        self.file = folder / "runs.jsonl"
        self._read = 0

    def install(self) -> None:
        """Write the plugin and the metadata through which vLLM finds it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        metadata = self.folder / "tagma_probe-1.dist-info"
        metadata.mkdir(parents=True)
        shutil.copyfile(self.program, self.folder / "tagma_probe.py")
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: tagma-probe\nVersion: 1\n"
        )
        (metadata / "entry_points.txt").write_text(
            "[vllm.general_plugins]\ntagma_probe = tagma_probe:register\n"
        )
        self.file.touch()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make a server load the plugin, and no other."""
        path = [str(self.folder), *filter(None, [base.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(path),
            "VLLM_PLUGINS": "tagma_probe",
            "TAGMA_PROBE_FILE": str(self.file),
        }

    def take(self) -> tuple[HeldBlocks, ...]:
        """Return what was recorded since the last call."""
        return tuple(HeldBlocks(**line) for line in self.take_lines())

    def take_lines(self) -> list[dict[str, Any]]:
        """Return the lines that were recorded since the last call."""
        lines = self.file.read_text("utf-8").splitlines()
        new, self._read = lines[self._read :], len(lines)
        return [json.loads(line) for line in new]
