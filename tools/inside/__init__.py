"""What runs in the serving environment, which lacks the tools' dependencies.

A module here imports only that environment's packages and its neighbours here.
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def sources() -> list[Path]:
    """Return all modules here; what a program makes depends on them."""
    return sorted(FOLDER.rglob("*.py"))


def command(python: Path, program: str, *arguments: str | Path) -> list[str | Path]:
    """Return the command line of a program here, to be run in the checkout.

    Args:
        python: The interpreter of the serving environment.
        program: The module's name.
        arguments: Its arguments.
    """
    return [python, "-m", f"{__name__}.{program}", *arguments]
