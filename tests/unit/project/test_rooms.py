"""The house: each room imports only what stands before it, and knows only the projects it may.

Read from the source, so that imports inside functions and under TYPE_CHECKING count as well.
"""

from __future__ import annotations

import ast
import re
import sys

import pytest

from support.house import (
    HERE,
    PACKAGE,
    ROOMS,
    SURFACE,
    beside,
    goes_up,
    imports,
    is_console,
    modules,
    room_of,
    stand,
)

ROOT = HERE / PACKAGE
MODULES = modules(ROOT)
NEVER = {("owner", "reaper.reaper")}

#: The doors in the wall. ``model`` has values and pure rules, and nobody can reach Redis by them;
#: ``errors`` and the surface are everybody's. What there is to see comes by the inspector alone.
#: Its commands are commands of ``cli``, and it prints as these do.
DOORS = {"inspector", "model", "errors", SURFACE}
DOORS_OF = {
    "console.queue_text": {"cli.tables"},
    "console.status": {"cli.tables"},
    "console.commands.charts": {"cli.session", "cli.tables"},
    "console.web.dead_page": {"cli.auditing"},
    "console.web.revoke_page": {"cli.auditing"},
    "console.web.queue_page": {"cli.pauses"},
    "console.commands.audit": {"cli.session", "cli.tables"},
    "console.commands.drill": {"cli.auditing", "cli.session"},
    "console.commands.examining": {"cli.session", "cli.tables"},
    "console.commands.job_shown": {"cli.tables"},
    "console.commands.jobs": {"cli.auditing", "cli.progress", "cli.session"},
    "console.commands.jobs_table": {"cli.tables"},
    "console.commands.recurring": {"cli.session"},
    "console.commands.server": {"cli.session", "cli.tables"},
    "console.commands.serving": {"cli.session"},
    "console.commands.workers": {"cli.auditing", "cli.session", "cli.tables"},
}
#: A name by which a module of the console can be loaded, and where the core has one: in the name of
#: a group of entry points.
CONSOLE_NAME = re.compile(rf"(?:{PACKAGE}\.)?console(?:\.\w+)*")
GROUPS = {"app.console": ["celery_superfetch.console"]}


def complaint(module: str, name: str) -> str | None:
    """Why a module must not import something, or None."""
    room = room_of(module)
    if not name.startswith("."):
        project = name.partition(".")[0]
        known = project in sys.stdlib_module_names or project in ROOMS[room].split()
        return None if known else f"{module} ({room}) must not know {project}"
    if (room, name[1:]) in NEVER:
        return f"{module} must never import {name}"
    if is_console(module) and not is_console(name[1:]):
        doors = DOORS | DOORS_OF.get(module, set())
        if not {name[1:], room_of(name[1:])} & doors:
            return f"{module} must not see {name} through the wall"
    upward = goes_up(room, room_of(name[1:]))
    return f"{module} ({room}) imports upward: {name}" if upward else None


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_one_way(module):
    assert not [why for name in imports(module, MODULES, ROOT) if (why := complaint(module, name))]


def test_no_circle():
    graph = {m: {n[1:] for n in imports(m, MODULES, ROOT) if n[0] == "."} for m in MODULES}
    del graph[SURFACE]
    assert stand(graph)[0] == set()


@pytest.mark.parametrize("folder", ["evidence", "benchmarks", "examples"])
def test_no_circle_beside_the_package(folder):
    graph = beside(HERE / folder)
    assert len(graph) > 10, "it was read"
    assert stand(graph)[0] == set()


def test_a_circle_beside_the_package_is_seen(tmp_path):
    (tmp_path / "points").mkdir()
    (tmp_path / "points" / "__init__.py").write_text("from .lane import Lane\n")
    (tmp_path / "points" / "lane.py").write_text("def late():\n    from .series import Series\n")
    (tmp_path / "points" / "series.py").write_text(f"import {tmp_path.name}.points.lane\n")
    circles, _ = stand(beside(tmp_path))
    assert circles == {frozenset({"points.lane", "points.series"})}


def console_names(source: str) -> list[str]:
    """Return the strings by which a module could load one of the console's."""
    strings = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    return [s for s in strings if isinstance(s, str) and CONSOLE_NAME.fullmatch(s)]


@pytest.mark.parametrize("module", sorted(m for m in MODULES if not is_console(m)))
def test_the_core_finds_the_console_by_its_entry_points_alone(module):
    assert not [name for name in imports(module, MODULES, ROOT) if "console" in name.split(".")[:2]]
    assert console_names(MODULES[module].read_text()) == GROUPS.get(module, [])


def test_a_name_of_the_console_is_seen():
    found = console_names(
        "load('celery_superfetch.console.health')\nHOMES = {'a': 'console.web'}\n"
    )
    assert found == ["celery_superfetch.console.health", "console.web"]


def test_a_circle_is_seen_and_is_one_floor():
    graph = {"roof": {"wall"}, "wall": {"door"}, "door": {"wall", "ground"}, "ground": set()}
    assert stand(graph) == ({frozenset({"wall", "door"})}, 3)


@pytest.mark.parametrize(
    "room", [room for room in ROOMS if (ROOT / room.replace(".", "/")).is_dir()]
)
def test_each_room_says_what_it_is_for_and_what_it_never_does(room):
    doc = ast.get_docstring(ast.parse(MODULES[room].read_text())) or ""
    title, paragraph = doc.split("\n\n")
    assert title.count("\n") == 0
    assert paragraph.count("\n") < 5
    assert re.search("never|nothing", doc, re.IGNORECASE)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("model.config", "redis"),
        ("store.keys", ".reaper.recovery"),
        ("store.redis.scripts", ".store.keys"),
        ("reaper.reaper", ".owner.owner"),
        ("reaper.reaper", "kombu"),
        ("owner.owner", ".reaper.reaper"),
        ("transport.transport", "celery"),
        ("migration.to_stock", ".app.queues"),
        ("migration.from_stock", "celery"),
        ("app.broker", ".worker.bootsteps"),
        ("worker.bootsteps", ".cli"),
        ("worker.bootsteps", ".console.metrics"),
        ("cli.status", ".console.health"),
        ("inspector", ".console.health"),
        ("console.health", ".store.owner_registry"),
        ("console.probe", ".cli.session"),
        ("console.commands.jobs", ".reaper.reaper"),
        ("console.commands.jobs", ".app.broker"),
        ("console.health", "rich"),
        ("worker.bootsteps", "requests"),
    ],
)
def test_a_wrong_import_is_seen(module, name):
    assert complaint(module, name)
