"""The house: each room imports only what stands before it, and knows only the projects it may.

Read from the source, so that imports inside functions and under TYPE_CHECKING count as well.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "celery_superfetch"
ROOT = Path(__file__).resolve().parents[3] / PACKAGE

#: Each room, and what it may know beside the standard library; a later one may import an earlier.
ROOMS = {
    "errors": "",
    "model": "psutil",
    "signals": "celery",
    "store.wire": "redis",
    "store": "redis",
    "reaper": "redis",
    "owner.in_flight": "redis",
    "owner": "redis",
    "transport.fetch": "redis kombu",
    "transport": "redis kombu",
    "app": "redis kombu celery billiard",
    "__init__": "",  # looks names up when they are asked for
    "worker": "redis kombu celery billiard",
    "cli": "redis kombu celery click rich",
}
#: It stands for all rooms, and so may name them for type checkers.
SURFACE = "__init__"
NEVER = {("owner", "reaper.reaper"), ("owner", "reaper.drain")}


def modules() -> dict[str, Path]:
    named = ((path.relative_to(ROOT).with_suffix("").parts, path) for path in ROOT.rglob("*.py"))
    return {".".join(p[:-1] if len(p) > 1 and p[-1] == "__init__" else p): f for p, f in named}


MODULES = modules()


def room_of(module: str) -> str:
    return max((r for r in ROOMS if f"{module}.".startswith(f"{r}.")), key=len)


def imports(module: str) -> Iterator[str]:
    """What a module imports: `.` before what is of this package."""
    path = MODULES[module]
    parents = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
        elif isinstance(node, ast.ImportFrom):
            base = (*parents[: len(parents) - node.level + 1], *filter(None, [node.module]))
            names = (".".join((*base, alias.name)) for alias in node.names)
            yield from ("." + (n if n in MODULES else ".".join(base) or SURFACE) for n in names)


def complaint(module: str, name: str) -> str | None:
    """Why a module must not import something, or None."""
    room, order = room_of(module), list(ROOMS)
    inside = name.startswith(".")
    if not inside:
        project = name.partition(".")[0]
        known = project in sys.stdlib_module_names or project in ROOMS[room].split()
        return None if known else f"{module} ({room}) must not know {project}"
    if (room, name[1:]) in NEVER:
        return f"{module} must never import {name}"
    upward = order.index(room_of(name[1:])) > order.index(room)
    return f"{module} ({room}) imports upward: {name}" if upward and room != SURFACE else None


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_one_way(module: str) -> None:
    assert not [why for name in imports(module) if (why := complaint(module, name))]


def test_no_circle() -> None:
    graph = {m: {n[1:] for n in imports(m) if n.startswith(".")} for m in MODULES if m != SURFACE}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    "room", [room for room in ROOMS if (ROOT / room.replace(".", "/")).is_dir()]
)
def test_each_room_says_what_it_is_for_and_what_it_never_does(room: str) -> None:
    doc = ast.get_docstring(ast.parse(MODULES[room].read_text())) or ""
    assert doc.count("\n") == 2
    assert re.search("never|nothing|decides on nobody", doc, re.IGNORECASE)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("model.config", "redis"),
        ("store.keys", ".reaper.judge"),
        ("store.wire.scripts", ".store.keys"),
        ("reaper.reaper", ".owner.membership"),
        ("reaper.reaper", "kombu"),
        ("owner.membership", ".reaper.reaper"),
        ("transport.transport", "celery"),
        ("app.broker", ".worker.steps"),
        ("worker.steps", ".cli"),
        ("worker.steps", "requests"),
    ],
)
def test_a_wrong_import_is_seen(module: str, name: str) -> None:
    assert complaint(module, name)
