"""docs/operate says of findings, log lines and messages what the package prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_superfetch.console.finding import LEVELS
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


def rules() -> list[dict[str, Any]]:
    text = (HERE / "examples" / "prometheus" / "alerts.yml").read_text()
    [group] = yaml.safe_load(text)["groups"]
    return list(group["rules"])


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


def index() -> list[list[str]]:
    """The rows of the runbook's first table: alert, findings, word, urgency, section."""
    table = RUNBOOK.partition("## Find the section")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|(.*)\|$", table, re.MULTILINE)[2:]
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def test_the_runbook_begins_with_a_table_of_each_alert_and_each_finding():
    rows = index()
    assert RUNBOOK.index("## Find the section") < RUNBOOK.index("\n## How to run")
    found = {code for row in rows for code in re.findall(r"`([\w-]+)`", row[1])}
    assert found == codes()
    levels = {rule["alert"]: rule["labels"]["severity"] for rule in rules()}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row[0])} == set(levels)
    for alert, _, _, urgency, _ in rows:
        if alert and alert != "`SuperfetchCritical`":
            wanted = {"critical": "now", "warning": "today"}[levels[alert.strip("`")]]
            assert urgency == wanted, alert


def levels() -> dict[str, set[str]]:
    """Code -> the levels of its findings; of a level that is computed all that may be meant."""
    found: dict[str, set[str]] = {}
    for node in nodes():
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            level, code = node.args[:2]
            assert isinstance(code, ast.Constant)
            known = {str(level.value)} if isinstance(level, ast.Constant) else {*LEVELS}
            found[str(code.value)] = found.get(str(code.value), set()) | known
    return found


def test_each_row_of_the_table_has_one_urgency_and_a_word_that_the_finding_may_have():
    words: dict[str, list[str]] = {}
    for _, findings, word, urgency, _ in index():
        assert urgency in ("now", "today", "note")
        for code in re.findall(r"`([\w-]+)`", findings):
            words.setdefault(code, []).append(word.strip("`").lower())
    for code, levels_of_code in levels().items():
        rows = words[code]
        assert len(rows) == len(set(rows)), code
        if len(levels_of_code) == 1:
            assert rows in ([*levels_of_code], ["any"]), code
        else:
            assert rows == ["any"] or {*rows} <= levels_of_code, code


def test_the_table_leads_each_finding_to_its_own_section():
    labels = re.findall(r"((?:^\([\w-]+\)=\n)+)### (.+)$", RUNBOOK, re.MULTILINE)
    title_of = {
        name: title for names, title in labels for name in re.findall(r"\(([\w-]+)\)=", names)
    }
    for _, findings, _, _, section in index():
        [(title, anchor)] = re.findall(r"\[(.+)\]\(#([\w-]+)\)", section)
        assert title_of.get(anchor, title) == title
        for code in re.findall(r"`([\w-]+)`", findings):
            assert title_of[code] == title, code


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
