"""The extension's build, with the real CMake on a tree like upstream's."""

import ctypes
import os
from pathlib import Path

import pytest

from tools.base.errors import ToolError
from tools.base.outcome import Outcome
from tools.base.project import Project
from tools.compile import extension

# As upstream's: PyTorch is asked for its folder, and must be found.
CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.26)
project(vllm_extensions LANGUAGES CXX)
set(Python_EXECUTABLE ${VLLM_PYTHON_EXECUTABLE})
find_package(Python COMPONENTS Interpreter Development.Module Development.SABIModule)
execute_process(COMMAND ${VLLM_PYTHON_EXECUTABLE} -c
  "import torch; print(torch.utils.cmake_prefix_path)"
  OUTPUT_VARIABLE FOLDER OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(APPEND CMAKE_PREFIX_PATH ${FOLDER})
find_package(Torch REQUIRED)
if(NOT VLLM_TARGET_DEVICE STREQUAL "empty")
  message(FATAL_ERROR "a device's targets")
endif()
Python_add_library(tagma MODULE USE_SABI 3.11 WITH_SOABI tagma.cpp)
target_link_libraries(tagma PRIVATE torch ${TORCH_LIBRARIES})
install(TARGETS tagma LIBRARY DESTINATION vllm COMPONENT tagma)
"""
SOURCE = 'extern "C" const char *file() { return __FILE__; }\n'


@pytest.fixture
def make_project(tmp_path: Path):
    def make(name: str) -> Project:
        project = Project(tmp_path / name, tmp_path / name / "build", tmp_path)
        project.tree.mkdir(parents=True)
        (project.tree / "CMakeLists.txt").write_text(CMAKE_LISTS)
        (project.tree / "tagma.cpp").write_text(SOURCE)
        return project

    return make


def test_the_file_loads_without_torch_and_is_the_same_from_another_folder(
    make_project, tmp_path
):
    one, other = (extension.build(make_project(name)) for name in ("one", "an other"))
    assert one.relative_to(tmp_path / "one" / "build") == Path("ext/vllm/tagma.abi3.so")
    library = ctypes.CDLL(str(one))
    library.file.restype = ctypes.c_char_p
    assert library.file() == b"./tagma.cpp"
    assert str(tmp_path).encode() not in one.read_bytes()
    assert one.read_bytes() == other.read_bytes()


def test_only_what_changed_is_compiled_again(make_project, monkeypatch):
    monkeypatch.setenv("DESTDIR", "/elsewhere")
    project = make_project("project")
    first = extension.build(project).read_bytes()
    compiled = project.build / "cmake" / "tagma.abi3.so"
    before = compiled.stat().st_mtime_ns
    assert extension.build(project).read_bytes() == first
    assert compiled.stat().st_mtime_ns == before
    (project.tree / "tagma.cpp").write_text(SOURCE.replace("file", "path"))
    assert extension.build(project).read_bytes() != first


def test_a_compile_error_is_shown_and_mended_by_the_next_run(make_project):
    project = make_project("project")
    (project.tree / "tagma.cpp").write_text("int f() { return missing; }\n")
    with pytest.raises(ToolError) as error:
        extension.build(project)
    assert error.value.outcome is Outcome.COMMAND_FAILED
    assert any("missing" in line for line in error.value.details)
    (project.tree / "tagma.cpp").write_text(SOURCE)
    assert extension.build(project).is_file()


def test_a_killed_configuration_starts_afresh(make_project):
    project = make_project("project")
    folder = project.build / "cmake"
    folder.mkdir(parents=True)
    (folder / "CMakeCache.txt").write_text("half a li")
    assert extension.build(project).is_file()


@pytest.mark.parametrize(("named", "shown"), [("", "g++"), ("no-such-cxx", "no-such")])
def test_a_missing_compiler_is_named(make_project, monkeypatch, named, shown):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("CXX", named)
    with pytest.raises(ToolError, match="no C") as error:
        extension.build(make_project("project"))
    assert error.value.outcome is Outcome.MISSING_TOOL
    assert shown in error.value.message
    assert "g++" in error.value.next_steps[0]
