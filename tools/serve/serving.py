"""Everything that has to be there before a server can start."""

from dataclasses import dataclass
from pathlib import Path

from tools.base.project import Project
from tools.compile.builder import ensure_built
from tools.serve.host import Host
from tools.serve.model import ensure_model
from tools.source.fetch import Sdist
from tools.tree.tree import Tree


@dataclass(frozen=True)
class Serving:
    """What a server needs.

    Args:
        host: The environment that serves, and what it runs on.
        model: The folder of the small model.
    """

    host: Host
    model: Path


def ensure_serving(project: Project) -> Serving:
    """Apply, build and make the model, each where it is needed.

    Raises:
        ToolError: One of them failed, or another run is at work.
    """
    with project.lock():
        host = ensure_host(project)
        return Serving(host, ensure_model(project, host.python))


def ensure_host(project: Project) -> Host:
    """Apply and build where it is needed. The caller holds the project's lock.

    Raises:
        ToolError: One of them failed.
    """
    Tree(project).apply(Sdist(project.cache))
    return Host.of(ensure_built(project))
