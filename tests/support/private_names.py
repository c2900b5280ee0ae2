"""Names of other projects that jobs depend on and that no one has promised to keep: each port (a
file of the package in which another project comes in) lists its own in its docstring.

A version whose names are others is found by the tests that run with it.
"""

from __future__ import annotations

import ast
import dis
import inspect
import re
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from types import FunctionType
from typing import Any, NamedTuple

MISSING = object()

_ENTRY = re.compile(r"([^\s>~]+)(?:>=([\d.]+))?(?:~(\S+))?")


class Name(NamedTuple):
    """The path is that of a module and, behind a colon, of what is in it, or what a method of a
    class sets; with a point before it, of an object of run time. What is called has its arguments
    behind it, those with ``=`` by name."""

    project: str
    path: str
    why: str  # completes "needed to"
    since: tuple[int, ...] = ()
    text: str = ""  # that it is; of a function, one that stands in it

    def __str__(self) -> str:
        begun = self.path.startswith(".")
        return f"{self.path[1:]} in a started pool" if begun else f"{self.project}.{self.path}"

    def is_there(self, what: Any) -> bool:
        path, called, args = self.path.rstrip(")").partition("(")
        module, _, attributes = path.rpartition(":")
        try:
            found = what if path.startswith(".") else import_module(f"{self.project}.{module}")
        except ModuleNotFoundError as exc:
            if str(exc.name).startswith(self.project):
                return False
            raise  # what is missing is another's
        for part in filter(None, attributes.split(".")):
            owner, found = found, attribute(found, part)
        if found is MISSING or (self.text and self.text not in _texts(found)):
            return False
        return not called or _takes(found, isinstance(owner, type), args)


def names(table: str) -> tuple[Name, ...]:
    """Read a table: a project and how paths begin there, and below it each purpose. Behind a path
    may stand the version that brought it (``>=5.7``) and its text (``~text``)."""
    found, why = [], ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            project, _, begin = line.partition(" ")
            continue
        begun, _, entries = line.strip().rpartition(": ")
        why = begun or why
        for path, first, text in _ENTRY.findall(entries):
            since = tuple(map(int, re.findall(r"\d+", first)))
            found.append(Name(project, begin + path, why, since, text))
    return tuple(found)


def missing(table: Iterable[Name], what: Any = None) -> list[str]:
    """What is not in the versions installed; a path with a point begins at ``what``."""
    due = (name for name in table if _version(name.project) >= name.since)
    return [f"{name}, to {name.why}" for name in due if not name.is_there(what)]


def _version(project: str) -> tuple[int, ...]:
    return tuple(map(int, version(project).split(".")[:2]))


def attribute(owner: Any, name: str) -> Any:
    """What is there under a name; None for what a method of a class sets, instrumented or not."""
    found = getattr(owner, name, MISSING)
    if found is not MISSING or not isinstance(owner, type):
        return found
    own = (inspect.unwrap(f) for one in owner.__mro__ for f in vars(one).values())
    codes = (f.__code__ for f in own if isinstance(f, FunctionType) and name in f.__code__.co_names)
    steps = (step for code in codes for step in dis.get_instructions(code))
    is_set = any(step.opname == "STORE_ATTR" and step.argval == name for step in steps)
    return None if is_set else MISSING


def _texts(found: Any) -> Iterable[Any]:
    code = getattr(inspect.unwrap(found), "__code__", None)
    return (found,) if code is None else (*code.co_consts, *code.co_names)


def _takes(found: Any, unbound: bool, args: str) -> bool:
    given = re.findall(r"\w+=?", args)
    by_name = {name[:-1]: None for name in given if name.endswith("=")}
    by_position = [None] * (unbound + len(given) - len(by_name))
    try:
        inspect.signature(found).bind(*by_position, **by_name)
    except TypeError:  # not to be called, or not in this way
        return False
    except ValueError:  # it is of C, and does not say how; or a method that takes not even itself
        return not inspect.ismethod(found)
    return True


def names_of(source: ast.Module) -> tuple[Name, ...]:
    """The names in the docstring of a module, below the line ``Foreign names:``: a table."""
    _, is_port, table = (ast.get_docstring(source) or "").partition("\nForeign names:\n")
    return names(table) if is_port else ()
