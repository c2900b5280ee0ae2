"""Each repair of Celery's code names the report that would end it, and each report its repair."""

from __future__ import annotations

import ast
import re

from support.house import HERE

REPORTS = re.findall("^## (.+)$", (HERE / "docs/contribute/reports.md").read_text(), re.MULTILINE)
#: What those say that have none.
NONE = {
    "none. Only this package needs it",
    "none yet",
}


def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((HERE / "celery_superfetch" / path).read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def methods(path: str) -> dict[str, ast.FunctionDef]:
    """Those of the classes of a file, by class and name."""
    tree = ast.parse((HERE / "celery_superfetch" / path).read_text())
    return {
        f"{kind.name}.{node.name}": node
        for kind in tree.body
        if isinstance(kind, ast.ClassDef)
        for node in kind.body
        if isinstance(node, ast.FunctionDef)
    }


def report_of(function: ast.FunctionDef) -> str:
    _, _, report = (ast.get_docstring(function) or "").partition("\nReport: ")
    return " ".join(report.split()).removesuffix(".")


def test_each_repair_of_the_pool_names_its_report():
    repairs = functions("worker/prefork.py")
    applied = {
        call.value.func.id
        for call in repairs["apply_repairs"].body
        if isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
    }
    assert len(applied) == 9
    assert {report_of(repairs[name]) for name in applied} <= {*REPORTS, *NONE}


def test_each_report_has_its_repair():
    repairs = {
        **functions("worker/prefork.py"),
        **functions("app/chords.py"),
        **methods("worker/pool_adapter.py"),
    }
    assert {report_of(repair) for repair in repairs.values()} - {""} == {*REPORTS, *NONE}
