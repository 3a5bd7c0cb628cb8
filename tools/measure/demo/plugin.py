"""Plugins of vLLM in a folder of their own, and what the probe among them recorded."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools import inside
from tools.measure.demo.measured import CopyingStep, HeldBlocks, Recorded


class Probe:
    """The plugins, installed in a folder for PYTHONPATH.

    Args:
        folder: Where; nothing else may be in it.
        programs: The modules of `tools.inside` that are the plugins.
    """

    def __init__(self, folder: Path, *programs: str):
        self.folder = folder
        self.programs = programs
        self.file = folder / "recorded.jsonl"
        self._read = 0

    def install(self) -> None:
        """Write the plugins and the metadata through which vLLM finds them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        metadata = self.folder / "tagma_demo-1.dist-info"
        metadata.mkdir(parents=True)
        for name in self.programs:
            copy = self.folder / f"tagma_{name}.py"
            shutil.copyfile(inside.FOLDER / f"{name}.py", copy)
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: tagma-demo\nVersion: 1\n"
        )
        entries = (f"tagma_{name} = tagma_{name}:register\n" for name in self.programs)
        (metadata / "entry_points.txt").write_text(
            "[vllm.general_plugins]\n" + "".join(entries)
        )
        self.file.touch()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make a server load the plugins, and no others."""
        path = [str(self.folder), *filter(None, [base.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(path),
            "VLLM_PLUGINS": ",".join(f"tagma_{name}" for name in self.programs),
            "TAGMA_PROBE_FILE": str(self.file),
        }

    def take(self) -> Recorded:
        """Return what was recorded since the last call."""
        held, steps = [], []
        for line in self.take_lines():
            if "request" in line:
                held.append(HeldBlocks(**line))
            else:
                steps.append(CopyingStep(**line))
        return Recorded(tuple(held), tuple(steps))

    def take_lines(self) -> list[dict[str, Any]]:
        """Return the lines that were recorded since the last call."""
        lines = self.all_lines()
        new, self._read = lines[self._read :], len(lines)
        return new

    def all_lines(self) -> list[dict[str, Any]]:
        """Return all lines that were recorded, taken or not."""
        return [json.loads(line) for line in self.file.read_text("utf-8").splitlines()]
