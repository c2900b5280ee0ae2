"""The rows of docs/guide/deploys.md, and the mark that says which test checks which."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide" / "deploys.md"
TESTS = ROOT / "tests"

Test = TypeVar("Test", bound=Callable[..., object])


def row(*names: str) -> Callable[[Test], Test]:
    """Say which rows of the page a test checks, by the text of their first column."""

    def mark(test: Test) -> Test:
        return test

    return mark


def documented() -> list[str]:
    """The first column of the page's tables of ways ("how"), without its markup."""
    names: list[str] = []
    for table in re.findall(
        r"^\| how \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE
    ):
        names += [line.split("|")[1].replace("`", "").strip() for line in table.splitlines()]
    return names


def checked() -> list[str]:
    """The rows that the tests say they check; read from the source, so nothing has to run."""
    names: list[str] = []
    for path in [TESTS / "workers" / "test_workers.py", *TESTS.glob("evidence/test_shutdown_*.py")]:
        for marks in re.findall(r"^@row\((.*?)\)$", path.read_text(), re.MULTILINE | re.DOTALL):
            names += re.findall(r'"([^"]+)"', marks)
    return names
