"""Engines that find a range worth another number of copies, to be compared."""

from collections.abc import Sequence
from pathlib import Path

from tools.base.project import Project
from tools.compile.extension import build_variant

_SOURCE = "csrc_tagma"


def build_all(project: Project, costs: Sequence[int]) -> dict[str, Path]:
    """Compile the engine once per cost; return the files by what to call them.

    Args:
        project: The project.
        costs: What a range is worth, in blocks.

    Raises:
        ToolError: A compilation fails.
    """
    engines = {}
    for cost in costs:
        name = f"range = {cost}"
        define = f"TAGMA_RANGE_COST={cost}"
        engines[name] = build_variant(project, project.root / _SOURCE, name, define)
    return engines
