"""What docstrings and comments name exists: files, arguments, and members of classes. A rename that
forgets the text sends a reader after a file that is not there."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_superfetch

ROOT = Path(celery_superfetch.__file__).parent
CHECKOUT = ROOT.parent
SOURCES = sorted(ROOT.rglob("*.py"))
LUA = sorted(ROOT.rglob("*.lua"))
#: Paths of all files that a text may name.
FILES = [
    path.relative_to(CHECKOUT).as_posix()
    for part in (ROOT.name, "tests", "benchmarks", "evidence", "examples", "docs")
    for path in (CHECKOUT / part).rglob("*.*")
    if path.suffix in (".py", ".lua")
]
Definition = ast.Module | ast.ClassDef | ast.FunctionDef


def definitions(source: str) -> Iterator[tuple[Definition, str]]:
    """Yield each definition that has a docstring, with that."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield node, text


def texts(source: str) -> Iterator[str]:
    """Yield the docstrings and comments of Python source."""
    yield from (text for _, text in definitions(source))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def missing_files(text: str) -> list[str]:
    named = re.findall(r"[\w/]+\.(?:py|lua)\b", text)
    return [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in FILES)]


def missing_arguments(source: str) -> list[str]:
    """Names in sections ``Arguments:`` that are no parameter, or no field of a class."""
    return [
        f"{getattr(node, 'name', '')}({name})"
        for node, text in definitions(source)
        for _, _, section in [text.partition("Arguments:\n")]
        for names in re.findall(r"^    (\w+(?:, \w+)*):", section.partition("\n\n")[0], re.M)
        for name in names.split(", ")
        if name not in _parameters(node)
    ]


def _parameters(node: Definition) -> set[str]:
    functions = [node] if isinstance(node, ast.FunctionDef) else []
    if isinstance(node, ast.ClassDef):
        own = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        functions = [item for item in own if item.name == "__init__"]
    nodes = [item for function in functions for item in ast.walk(function.args)]
    given = [item.arg for item in nodes if isinstance(item, ast.arg)]
    fields = [
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    return {*given, *fields}


@pytest.mark.parametrize("path", [*SOURCES, *LUA], ids=lambda path: str(path.relative_to(ROOT)))
def test_each_file_that_a_text_names_is_there(path):
    source = path.read_text()
    found = texts(source) if path.suffix == ".py" else re.findall("--.*", source)
    assert [name for text in found for name in missing_files(text)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_argument_that_a_docstring_explains_is_one(path):
    assert missing_arguments(path.read_text()) == []


def test_the_control_finds_what_is_not_there():
    assert missing_files("see `reaper/drain.py` and `model/permit.py`") == ["model/permit.py"]
    source = 'def wait(until):\n    """Wait.\n\n    Arguments:\n        till: when.\n    """\n'
    assert missing_arguments(source) == ["wait(till)"]
    assert missing_arguments(source.replace("till", "until")) == []
