"""Engines with another policy, compiled to be compared with the tree's.

A policy of replacement is a patch in `variants/`, with its idea above the diff. These
are no part of the fork: what they measure is why the engine does without them.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.git import Repository
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.compile.extension import build_variant

_FOLDER = Path(__file__).with_name("variants")
_SOURCE = "csrc_tagma"
NAMES = tuple(sorted(patch.stem for patch in _FOLDER.glob("*.patch")))


def build_all(
    project: Project, names: Sequence[str], range_costs: Sequence[int]
) -> dict[str, Path]:
    """Compile engines and return their files by what to call them.

    Args:
        project: The project.
        names: Of variants, of `NAMES`; "" is the engine as it is.
        range_costs: What each is to find a range worth, in blocks; none: the value
            in the source.

    Raises:
        ToolError: A variant's patch does not apply, or a compilation fails.
    """
    sources = {
        name: _patched(project, name) if name else project.root / _SOURCE
        for name in names
    }
    engines = {}
    for name, source in sources.items():
        for cost in range_costs:
            label = f"{name}{', ' if name else ''}range = {cost}"
            define = f"TAGMA_RANGE_COST={cost}"
            engines[label] = build_variant(project, source, label, define)
        if not range_costs:
            engines[name] = build_variant(project, source, name)
    return engines


def _patched(project: Project, name: str) -> Path:
    """Return a copy of the engine's sources with a variant's patch."""
    folder = project.build / "bench" / "variants" / name
    shutil.rmtree(folder, ignore_errors=True)
    repository = Repository(folder)
    repository.init()
    shutil.copytree(project.root / _SOURCE, folder / _SOURCE)
    patch = _FOLDER / f"{name}.patch"
    applied = repository.git("apply", patch, check=False)
    if applied.status:
        raise ToolError(
            Outcome.CONFLICT,
            f"the variant {name} does not apply to the engine",
            (f"Change {patch} as the engine has changed",),
            tuple(applied.error_text.splitlines()),
        )
    return folder / _SOURCE
