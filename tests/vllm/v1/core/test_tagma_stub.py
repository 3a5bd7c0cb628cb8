# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The stub `tagma.pyi` tells of the compiled module `vllm.tagma` what it has.

Type checkers and readers see the stub, `help()` the module: names, signatures and
texts are the same on both sides.
"""

import ast
import copy
import inspect
from pathlib import Path

import pytest

from vllm import tagma

# No engine and no distributed state to clean up after each test.
pytestmark = [pytest.mark.cpu_test, pytest.mark.skip_global_cleanup]

STUB = ast.parse(Path(tagma.__file__).with_name("tagma.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
MEMBERS = {
    f"{owner}.{node.name}": node
    for owner, body in CLASSES.items()
    for node in body.body
    if isinstance(node, ast.FunctionDef)
}
# CPython itself documents what begins and ends with two underscores.
DOCUMENTED = [name for name in MEMBERS if not name.endswith("__")]
PROPERTIES = [name for name in DOCUMENTED if MEMBERS[name].decorator_list]
METHODS = [name for name in DOCUMENTED if not MEMBERS[name].decorator_list]
CONSTRUCTORS = [name for name in MEMBERS if name.endswith(".__new__")]
EVERY_CLASS_HAS = {"__doc__", "__module__", "__weakref__"}


def member(name: str):
    owner, attribute = name.split(".")
    return vars(getattr(tagma, owner))[attribute]


def parameters_in_stub(name: str) -> str:
    """The parameters behind `self` or `cls`, without their types."""
    arguments = copy.deepcopy(MEMBERS[name].args)
    del (arguments.posonlyargs or arguments.args)[0]
    for argument in arguments.posonlyargs + arguments.args:
        argument.annotation = None
    return f"({ast.unparse(arguments)})"


def parameters(function, skip: int) -> str:
    signature = inspect.signature(function)
    rest = list(signature.parameters.values())[skip:]
    return str(signature.replace(parameters=rest))


def test_the_module_has_the_classes_of_the_stub_and_no_others():
    assert {name for name in vars(tagma) if not name.startswith("_")} == set(CLASSES)
    assert inspect.getdoc(tagma) == ast.get_docstring(STUB)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_the_one_of_the_stub(name):
    in_stub, built = CLASSES[name], getattr(tagma, name)
    assert built.__name__ == name and built.__module__ == "vllm.tagma"
    assert inspect.getdoc(built) == ast.get_docstring(in_stub)
    bases = [base.__name__ for base in built.__bases__]
    assert bases == ([ast.unparse(base) for base in in_stub.bases] or ["object"])
    members = {key.split(".")[1] for key in MEMBERS if key.startswith(f"{name}.")}
    assert set(vars(built)) - EVERY_CLASS_HAS == members
    if [ast.unparse(mark) for mark in in_stub.decorator_list] == ["final"]:
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Derived", (built,), {})


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_member_has_the_text_of_the_stub(name):
    text = inspect.getdoc(member(name))
    assert text == ast.get_docstring(MEMBERS[name])
    assert text


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_parameters_of_the_stub(name):
    assert callable(member(name))
    assert parameters(member(name), skip=1) == parameters_in_stub(name)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_class_is_made_with_the_parameters_of_the_stub(name):
    built = getattr(tagma, name.split(".")[0])
    assert parameters(built, skip=0) == parameters_in_stub(name)


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_of_the_stub_is_one(name):
    assert [ast.unparse(mark) for mark in MEMBERS[name].decorator_list] == ["property"]
    assert inspect.isgetsetdescriptor(member(name))
