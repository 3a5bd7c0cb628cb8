"""What servers are told about the machine that they run on."""

from pathlib import Path

from tools.serve.host import Host


def test_only_a_cpu_host_interprets_kernels(tmp_path: Path) -> None:
    cpu, gpu = Host(tmp_path, True), Host(tmp_path, False)
    assert cpu.environment({})["TRITON_INTERPRET"] == "1"
    assert "TRITON_INTERPRET" not in gpu.environment({})
    assert "--dtype=float32" in cpu.arguments and gpu.arguments == ()
    for host in (cpu, gpu):
        assert host.environment({})["VLLM_USE_V2_MODEL_RUNNER"] == "1"
