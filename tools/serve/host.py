"""What the serving environment runs on."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.base.process import run


@dataclass(frozen=True)
class Host:
    """What the serving environment runs on.

    Args:
        venv: The environment.
        on_cpu: It holds vLLM's CPU build.
    """

    venv: Path
    on_cpu: bool

    @classmethod
    def of(cls, venv: Path) -> "Host":
        """Return the host of an environment; its vLLM's version names the device."""
        code = "from importlib.metadata import version; print(version('vllm'))"
        python = venv / "bin" / "python"
        return cls(venv, "cpu" in run([python, "-c", code]).text)

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.venv / "bin" / "python"

    @property
    def vllm(self) -> Path:
        """The program."""
        return self.venv / "bin" / "vllm"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What `vllm serve` needs to run on this host."""
        if not self.on_cpu:
            return ()
        # bfloat16 dies on virtual machines whose CPU claims AMX and has none.
        return ("--dtype=float32", "--enforce-eager")

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a server, on top of `base`."""
        env = dict(base) | {
            "PATH": f"{self.venv / 'bin'}{os.pathsep}{base.get('PATH', os.defpath)}",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if self.on_cpu:
            env["TRITON_INTERPRET"] = "1"
        return env

    def neutral_environment(self) -> dict[str, str]:
        """Return the variables of a program that measures.

        The user's own vLLM settings make no difference there, and nothing is
        downloaded.
        """
        base = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
        return self.environment(base) | {"HF_HUB_OFFLINE": "1"}
