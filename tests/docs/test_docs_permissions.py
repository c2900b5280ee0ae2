"""docs/reference/options.md names every command that the scripts use, and so does its user."""

from __future__ import annotations

import re
from pathlib import Path

import celery_superfetch
from celery_superfetch.console.permissions import OPTIONAL, REQUIRED, name_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "options.md"

#: Scripts that no worker runs, but people; what they need beside is named below the lists.
BY_HAND = {"retry"}
#: Script -> optional commands that it calls in a `pcall`: if one is forbidden, it goes on.
GUARDED = {"heartbeat": {"zlexcount", "zrevrangebylex"}}


#: How a script calls a command: by itself, or by a function of ``shared.lua``.
CALLS = r"redis\.p?call\(|read_note\('\w+',|call_in_parts\("

STORE = Path(celery_superfetch.__file__).parent / "store"


def scripts() -> dict[str, set[str]]:
    """Each script that workers run, and the commands in it."""
    return {
        path.stem: {
            name.lower() for name in re.findall(rf"(?:{CALLS})\s*'([A-Z]+)'", path.read_text())
        }
        for path in (STORE / "lua").glob("*.lua")
        if path.stem not in BY_HAND
    }


def test_the_required_commands_have_those_of_the_scripts():
    known = {*map(name_of, REQUIRED)}
    called = {name: used - GUARDED.get(name, set()) for name, used in scripts().items()}
    missing = {name: left for name, used in called.items() if (left := used - known)}
    assert not missing


def test_no_command_is_required_that_nobody_calls():
    """Outside scripts a command is a method of redis-py's, or a word of its own."""
    sources = [*STORE.rglob("*.py")]
    text = "".join(path.read_text() for path in sources)
    called = set().union(*scripts().values())
    for name in {*map(name_of, REQUIRED)} - called:
        words = name.split("|")
        method = rf"\.{'_'.join(words)}(_iter)?\("
        assert re.search(rf'{method}|"{words[0].upper()}[" ]', text), name


def test_the_page_has_what_the_doctor_asks_for():
    text = DOCS.read_text()
    [listed] = re.findall(r"This package's, required\.\*\*.*?```text(.*?)```", text, re.DOTALL)
    assert sorted(listed.replace("+", "").split()) == sorted(map(name_of, REQUIRED))
    [table] = re.findall(r"This package's, optional:\*\*(.*?)\*\*One user", text, re.DOTALL)
    rows = re.findall(r"^\| `\+(\S+)`", table.replace("\\|", "|"), re.MULTILINE)
    assert rows == [name_of(line) for line in OPTIONAL]


def test_the_users_line_allows_what_is_required():
    [user] = re.findall(r"ACL SETUSER shop on >password (.*?)```", DOCS.read_text(), re.DOTALL)
    assert {*map(name_of, REQUIRED)} <= {word.removeprefix("+") for word in user.split()}
