"""Log lines, errors, findings and help have one verb for each transition; a log line is short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.house import HERE, PACKAGE

#: What has one verb in the glossary: requeue, recover, retry, continue. ``test_vocabulary`` counts
#: the words that are banned everywhere.
BANNED = re.compile(
    r"\b(go|goes|went|give|gives|gave|given|put|puts|take|takes|taken) back\b|\b(goes|went) on\b",
    re.IGNORECASE,
)
LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "failed"}
LOG_LINE_MAX_CHARS = 260  # before its values
PAGES = sorted((HERE / PACKAGE / "console" / "web").rglob("*.html"))


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for source in sorted((HERE / PACKAGE).rglob("*.py")):
        yield source, ast.parse(source.read_text())


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every text of more than one word, docstrings apart, except those of commands: their help."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings and " " in node.value.strip():
            yield node.lineno, node.value
        if isinstance(node, ast.FunctionDef) and "command" in str(
            [ast.dump(decorator) for decorator in node.decorator_list]
        ):
            yield node.lineno, ast.get_docstring(node) or ""


def test_messages_have_one_verb_for_each_transition():
    wrong = [
        f"{source.relative_to(HERE)}:{line}: {text}"
        for source, tree in trees()
        for line, text in messages(tree)
        if BANNED.search(text)
    ]
    wrong += [
        str(page) for page in PAGES if BANNED.search(re.sub(r"{[{%].*?[%}]}", "", page.read_text()))
    ]
    assert not wrong


def test_a_command_that_a_message_names_can_be_pasted():
    """It begins with the app of the process (``humanize.command``): without it, Celery would ask an
    app of its own, at a broker of its own."""
    without_app = re.compile(r"(`|<code>)(celery )?superfetch [a-z]")
    wrong = [
        f"{source.relative_to(HERE)}:{line}: {text}"
        for source, tree in trees()
        for line, text in messages(tree)
        if without_app.search(text)
    ]
    wrong += [str(page) for page in PAGES if without_app.search(page.read_text())]
    assert not wrong


def test_a_log_line_is_short():
    """A terminal and a log viewer cut long lines, and what to do stands at the end."""
    long = [
        f"{source.relative_to(HERE)}:{call.lineno}: {text.value}"
        for source, tree in trees()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in LEVELS
        for text in call.args[:1]
        if isinstance(text, ast.Constant) and len(str(text.value)) > LOG_LINE_MAX_CHARS
    ]
    assert not long
