"""What servers are told about the machine that they run on."""

from pathlib import Path

import pytest

from tools.serve.host import Host


def test_only_a_cpu_host_interprets_kernels(tmp_path: Path) -> None:
    cpu, gpu = Host(tmp_path, True), Host(tmp_path, False)
    assert cpu.environment({})["TRITON_INTERPRET"] == "1"
    assert "TRITON_INTERPRET" not in gpu.environment({})
    assert "--dtype=float32" in cpu.arguments and gpu.arguments == ()
    for host in (cpu, gpu):
        assert host.environment({})["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_what_measures_sees_nothing_of_the_users_vllm_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setenv("VLLM_PORT", "1")
    monkeypatch.setenv("ELSE", "kept")
    env = Host(tmp_path, True).neutral_environment()
    assert env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert "VLLM_PORT" not in env
    assert (env["ELSE"], env["HF_HUB_OFFLINE"]) == ("kept", "1")
