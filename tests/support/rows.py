"""The rows of docs/run/deploying.md, and the mark that says which test checks which."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "run" / "deploying.md"
TESTS = ROOT / "tests"

Test = TypeVar("Test", bound=Callable[..., object])


def row(*names: str) -> Callable[[Test], Test]:
    """Say which rows of the page a test checks, by the text of their first column."""

    def mark(test: Test) -> Test:
        return test

    return mark


def documented() -> list[tuple[str, str]]:
    """First column of the page's tables of ways ("how") and settings, without its markup, and the
    pools of the row: empty in a table without that column."""
    rows: list[tuple[str, str]] = []
    for second, table in re.findall(
        r"^\| (?:how|setting) \| (\w+).*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE
    ):
        for line in table.splitlines():
            name, pools = (cell.replace("`", "").strip() for cell in line.split("|")[1:3])
            rows.append((name, pools if second == "pool" else ""))
    return rows


def checked() -> list[str]:
    """The rows that the tests say they check; read from the source, so nothing has to run."""
    names: list[str] = []
    for path in [TESTS / "workers" / "test_workers.py", *TESTS.glob("evidence/test_shutdown_*.py")]:
        for marks in re.findall(r"^@row\((.*?)\)$", path.read_text(), re.MULTILINE | re.DOTALL):
            names += re.findall(r'"([^"]+)"', marks)
    return names
