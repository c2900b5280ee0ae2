"""docs/operate says of findings, log lines and messages what the package prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.house import HERE, PACKAGE

RUNBOOK = (HERE / "docs" / "operate" / "runbook.md").read_text()
SOURCES = sorted((HERE / PACKAGE).rglob("*.py"))
PARTS = ("**Symptom**", "**Check.**", "**Fix.**")


def nodes() -> Iterator[ast.AST]:
    for source in SOURCES:
        yield from ast.walk(ast.parse(source.read_text()))


def codes() -> set[str]:
    """Of all findings: the second argument of each."""
    found = set()
    for node in nodes():
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            code = node.args[1]
            assert isinstance(code, ast.Constant), ast.unparse(node)
            found.add(str(code.value))
    return found


def texts() -> set[str]:
    """All that the package may print, with its gaps as they are."""
    found = {str(one.value) for one in nodes() if isinstance(one, ast.Constant)}
    return found | {ast.unparse(one) for one in nodes() if isinstance(one, ast.JoinedStr)}


def sections() -> dict[str, str]:
    """Title -> the text below, of each trouble."""
    parts = re.split(r"^### (.+)$", RUNBOOK, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_finding_has_its_section_in_the_runbook():
    labels = set(re.findall(r"^\(([\w-]+)\)=$", RUNBOOK, re.MULTILINE))
    assert len(codes()) > 35
    assert codes() - labels == set()
    # A label stands right before the title of its section, or before another one of it.
    assert not re.search(r"^\([\w-]+\)=\n(?!\(|### )", RUNBOOK, re.MULTILINE)


@pytest.mark.parametrize("title", sections())
def test_each_section_has_the_three_parts_in_their_order(title):
    text = sections()[title]
    assert re.findall(r"^\*\*\w+\.?\*\*", text, re.MULTILINE) == list(PARTS)
    assert "```text" in text


def test_log_lines_to_alert_on_are_written_by_the_package():
    rows = re.findall(r"^\| `([^`]+)` \|", RUNBOOK.partition("## Log lines")[2], re.MULTILINE)
    printed = texts()
    assert len(rows) > 20
    for row in rows:
        words = [part.strip() for part in row.split("...")]
        assert any(all(word in text for word in words) for text in printed), row


def test_pages_that_messages_and_examples_name_exist():
    files = [*SOURCES, *(path for path in (HERE / "examples").rglob("*.*") if path.is_file())]
    named = {
        (path.name, name)
        for path in files
        if path.suffix != ".pyc"
        for name in re.findall(r"\bdocs/([\w/]+)", path.read_text(errors="replace"))
    }
    assert named
    missing = {(file, name) for file, name in named if not page(name).exists()}
    assert not missing


def page(name: str) -> Path:
    return HERE / "docs" / f"{name}.md"
