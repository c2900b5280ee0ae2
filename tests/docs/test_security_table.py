"""SECURITY.md: each row of its table names a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_row_of_the_table_of_attackers_has_its_test():
    lines = (ROOT / "SECURITY.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| who |")]
    assert len(rows) >= 40
    assert sum(row.startswith("| **") for row in rows) == 5, "the positions of an attacker"
    for row in rows:
        [(path, name)] = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), row
