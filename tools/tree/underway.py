"""A rebase under way: it takes several commands, and all others show it or refuse."""

import json
from pathlib import Path

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.project import Project


def folder(project: Project) -> Path:
    """Return the folder of the rebase that is under way."""
    return project.build / "rebase"


def journal_file(project: Project) -> Path:
    """Return the file that is there as long as a rebase is under way."""
    return folder(project) / "journal.json"


def title(project: Project) -> str:
    """Return what is under way, for example "a rebase to 0.33.0"; "" if nothing is."""
    try:
        return str(json.loads(journal_file(project).read_text("utf-8"))["title"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError):
        return "a rebase with a damaged journal"


def refuse(project: Project) -> None:
    """Stop a command that would change or move what a rebase began with.

    Raises:
        ToolError: A rebase is under way.
    """
    if found := title(project):
        raise ToolError(
            Outcome.IN_PROGRESS,
            f"{found} is under way",
            (
                "Go on: python -m tools rebase --continue",
                "or give it up: python -m tools rebase --abort",
                "See where it stands: python -m tools rebase --status",
            ),
        )
