"""Code, messages and docs have no banned word (``tests/support/vocabulary.py`` has the rules)."""

from __future__ import annotations

import pytest

from support import vocabulary
from support.vocabulary import faults, faults_in_code, faults_in_page, pages, shared_names


def test_no_text_has_a_banned_word():
    assert not [f"{fault.place}: {fault.kind}: {fault.text}" for fault in faults()]


def test_the_pages_of_the_repository_are_among_those_read():
    names = {page.name for page in pages()}
    assert {"README.md", "EVIDENCE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} <= names
    assert {"decisions.md", "architecture.md", "runbook.md"} <= names


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ('def read():\n    """What is read."""\n', "opening"),
        ('class A:\n    """Whether it is."""\n', "opening"),
        ('"""How it works."""\n', "opening"),
        ("#: Who has it.\nA_B = 1\n", "opening"),
        ('def read():\n    """The bytes that were read."""\n', "no verb"),
        ('def read():\n    """Read.\n\n    Nobody else does.\n    """\n', "text"),
        ("a = 1  # whoever is first\n", "text"),
        ("# Taken for dead.\na = 1\n", "text"),
        ('raise ValueError("somebody has it")\n', "message"),
        ("def tell(): ...\n", "name"),
        ("def read(seen): ...\n", "name"),
        ("self._told = 1\n", "name"),
    ],
)
def test_a_fault_in_code_is_seen(source, kind):
    assert [found for found, _, _ in faults_in_code(source)] == [kind]


@pytest.mark.parametrize(
    "source",
    [
        'class A:\n    @property\n    def b(self):\n        """The bytes."""\n',
        'def read():\n    """Return what was read, or whether it was."""\n',
        "# When the server restarts, a reply is lost.\na = 1\n",
        "def tell_apart(told_by): ...\n",
        'a = "what"\n',
    ],
)
def test_other_code_is_no_fault(source):
    assert [*faults_in_code(source)] == []


@pytest.mark.parametrize(
    "page",
    [
        "Nobody reads it.\n",
        "It is quarantined.\n",
        "It runs. Else it waits.\n",
        "Who asks, waits.\n",
    ],
)
def test_a_fault_in_a_page_is_seen(page):
    assert len([*faults_in_page(page)]) == 1


def test_a_question_in_a_page_is_no_fault():
    assert [*faults_in_page("Who asks?\n# Who is dead\n")] == []


def test_shared_names_and_numbers_without_a_noun_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "HERE", tmp_path)
    monkeypatch.setattr(vocabulary, "PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text("class Run: ...\nNAMES = ()\nBATCH = 2 * 60\nONLY = ()\n")
    (tmp_path / "b.py").write_text("class Run: ...\nNAMES = ()\nREAP_BATCH = 100\n")
    faults = shared_names([tmp_path / "a.py", tmp_path / "b.py"])
    assert sorted((fault.kind, fault.text) for fault in faults) == [
        *[("class", "Run")] * 2,
        ("constant", "BATCH"),
        *[("constant", "NAMES")] * 2,
    ]
