"""What a check of patches and overlays found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something to mend.

    Args:
        path: The file, in the checkout.
        rule: The check's name.
        message: What is wrong.
        line: Where, from 1; 0: the file as a whole.
        fatal: It must be mended; otherwise it is only said.
    """

    path: str
    rule: str
    message: str
    line: int = 0
    fatal: bool = True

    def __str__(self) -> str:
        """Return one line, which editors can jump to."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        kind = "" if self.fatal else " (warning)"
        return f"{place}: {self.rule}{kind}: {self.message}"
