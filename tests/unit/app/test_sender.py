"""The functions by whose names the sender of a message is found in the stack."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from types import CodeType

import pytest

from celery_superfetch.app.sender import DECIDE, OURS

PACKAGE = "celery_superfetch"


def names_of_functions(code: CodeType) -> Iterator[str]:
    """Yield the names of all functions in a module's code, also of nested ones."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part.co_name
            yield from names_of_functions(part)


def functions_of(module: str) -> set[str]:
    source = inspect.getsource(import_module(module))
    return set(names_of_functions(compile(source, module, "exec")))


@pytest.mark.parametrize("name", DECIDE)
def test_a_function_that_decides_is_in_its_module(name):
    assert name in functions_of(DECIDE[name]), "without it each run publishes its steps again"


def test_the_functions_that_publish_outside_the_tracer_are_this_packages():
    assert {name for name in OURS if DECIDE[name].startswith(PACKAGE)} == OURS


def test_control_a_function_of_another_name_is_not_found():
    assert "_complete_it" not in functions_of("celery_superfetch.app.steps")
