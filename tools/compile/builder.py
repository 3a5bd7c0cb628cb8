"""The build: extension, wheel and environment, each only when out of date."""

from dataclasses import dataclass
from pathlib import Path

from tools.base.digest import sha256
from tools.base.project import Project
from tools.compile import environment, extension, toolchain, wheel
from tools.source.fetch import fetch
from tools.source.pin import Pin
from tools.tree.tree import Tree


@dataclass(frozen=True)
class Built:
    """A finished build.

    Args:
        wheel: The wheel.
        installed: The environment that has it; None: it was not installed.
        changed: The steps that were not up to date.
    """

    wheel: Path
    installed: Path | None
    changed: tuple[str, ...]


def build(project: Project, device: str) -> Built:
    """Build the wheel; the CPU's is installed too. The caller holds the lock.

    The CUDA wheel is not installed: its packages are those of the GPU machine.

    Args:
        project: The project.
        device: "cpu" or "cuda".

    Raises:
        ToolError: The tree is not current, or a step failed.
    """
    Tree(project).require_current()
    pin = Pin.read(project.pin_file)
    pin.wheel(device)  # before 160 packages are fetched
    installs = device == "cpu"
    steps = {}
    if installs:
        steps["environment"] = environment.ensure(project)
    made = wheel.build(project, pin, device, extension.build(project))
    steps["wheel"] = made.made
    if installs:
        steps["install"] = environment.install(project, made.path, made.inputs)
    return Built(
        made.path,
        project.venv if installs else None,
        tuple(name for name, worked in steps.items() if worked),
    )


def build_fully(project: Project, device: str) -> Built:
    """Compile all of vLLM through upstream's setup.py. The caller holds the lock.

    Args:
        project: The project.
        device: "cpu" or "cuda".

    Raises:
        ToolError: The tree is not current, the machine lacks something, or a step
            failed.
    """
    Tree(project).require_current()
    toolchain.require(project.tree, device, environment.torch_version(project))
    environment.ensure(project)
    # Only now it is known which torch pip finds here.
    toolchain.require(project.tree, device, environment.torch_version(project))
    pin = Pin.read(project.pin_file)
    variables = {"VLLM_TARGET_DEVICE": device} | _version_variable(pin, device)
    target = project.build / "wheel" / f"{device}-full"
    path = environment.build_wheel(project, target, variables)
    if device != "cpu":
        return Built(path, None, ("wheel",))
    environment.install(project, path, {"full": sha256(path)})
    return Built(path, project.venv, ("wheel", "install"))


def build_in_place(project: Project) -> None:
    """Install the tree itself, so that edits of it count at once.

    This is upstream's own way: its setup.py takes the compiled members from the
    prebuilt wheel and compiles what that lacks. The caller holds the lock.

    Args:
        project: The project.

    Raises:
        ToolError: There is no current tree, or a step failed.
    """
    Tree(project).require_current(edits=True)
    pin = Pin.read(project.pin_file)
    artifact = pin.wheel("cpu")
    environment.ensure(project)
    prebuilt = fetch(artifact, project.cache)
    variables = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_USE_PRECOMPILED": "1",
        "VLLM_PRECOMPILED_WHEEL_LOCATION": str(prebuilt),
    }
    environment.install_in_place(project, variables | _version_variable(pin, "cpu"))


def ensure_built(project: Project) -> Path:
    """Build for the CPU and return the environment that serves."""
    built = build(project, "cpu")
    assert built.installed
    return built.installed


def _version_variable(pin: Pin, device: str) -> dict[str, str]:
    """Return the variable that gives setup.py the version: the tree has no tags."""
    return {"VLLM_VERSION_OVERRIDE": wheel.version(pin, device)}
