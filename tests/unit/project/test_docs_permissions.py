"""docs/configuration.md names every command that the scripts use, and so does its user."""

from __future__ import annotations

import re
from pathlib import Path

import celery_superfetch

DOCS = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"

#: Scripts that no worker runs, but people; what they need beside is named below the lists.
BY_HAND = {"holdings", "migrate", "revive"}


def scripts() -> dict[str, set[str]]:
    """Each script that workers run, and the commands in it."""
    folder = Path(celery_superfetch.__file__).parent / "store" / "lua"
    return {
        path.stem: {
            name.lower() for name in re.findall(r"redis\.p?call\(\s*'([A-Z]+)'", path.read_text())
        }
        for path in folder.glob("*.lua")
        if path.stem not in BY_HAND
    }


def test_a_worker_is_allowed_every_command_of_its_scripts() -> None:
    text = DOCS.read_text()
    [required] = re.findall(r"This package's, required\.\*\*.*?```text(.*?)```", text, re.DOTALL)
    [user] = re.findall(r"ACL SETUSER shop on >password (.*?)```", text, re.DOTALL)
    for listed in (required, user):
        allowed = {word.removeprefix("+") for word in listed.split()}
        missing = {name: used - allowed for name, used in scripts().items() if used - allowed}
        assert not missing
