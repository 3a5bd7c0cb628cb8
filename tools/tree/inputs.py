"""Everything that determines the patched tree: pin, overlays and series."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from tools.base.project import Project
from tools.source.pin import Pin
from tools.tree import overlay
from tools.tree.series import Series


@dataclass(frozen=True)
class Inputs:
    """The inputs of a checkout, read and checked."""

    pin: Pin
    overlays: tuple[overlay.OverlayFile, ...]
    series: Series

    @classmethod
    def read(
        cls, project: Project, relock: bool = False, *, series: bool = True
    ) -> "Inputs":
        """Read and check all inputs.

        Args:
            project: The project.
            relock: Ignore the present lock of the patched tree.
            series: Read the series; otherwise it is empty.

        Raises:
            ToolError: The pin or the series is broken.
        """
        return cls(
            Pin.read(project.pin_file, locked=not relock),
            tuple(overlay.files(project.root)),
            Series.read(project.patches) if series else Series(project.patches, ()),
        )

    def digest(self) -> str:
        """Return a digest that changes with any input."""
        total = hashlib.sha256(self.pin.tree.encode())
        for file in self.overlays:
            total.update(f"\0{file.target}\0{file.mode}\0".encode())
            total.update(hashlib.sha256(file.source.read_bytes()).digest())
        for path in self.series.paths:
            total.update(f"\0{path.name}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()


def copy_inputs(root: Path, target: Path) -> None:
    """Copy what determines the tree of the checkout `root` to another folder."""
    for folder in ("patches", *overlay.FOLDERS):
        if (root / folder).is_dir():
            shutil.copytree(root / folder, target / folder)
    (target / "upstream").mkdir()
    shutil.copy(root / "upstream" / "pin.toml", target / "upstream")
