"""SECURITY.md's table: five positions of an attacker, and a test that exists for each row."""

from __future__ import annotations

import ast

import pytest

from support.house import HERE

POSITIONS = ("visitor", "local user", "producer", "writer", "supplier")
LINES = (HERE / "SECURITY.md").read_text().partition("## Who can do what")[2].splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if "::" in line]


def test_each_position_has_rows():
    named = [who.strip("*") for who, *_ in ROWS if who]
    assert len(named) == len(POSITIONS)
    assert all(map(str.startswith, named, POSITIONS)), named


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[-1].partition("::")[2].strip("`"))
def test_the_test_of_a_row_exists(row):
    _, can, cannot, test = row
    assert can
    assert cannot
    file, _, name = test.strip("`").partition("::")
    defined = ast.walk(ast.parse((HERE / file).read_text()))
    assert name in {node.name for node in defined if isinstance(node, ast.FunctionDef)}
