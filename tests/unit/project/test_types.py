"""Users have type information of what they call, although Celery brings none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import celery_superfetch
from celery_superfetch.app import installation
from celery_superfetch.model.config import Config
from celery_superfetch.model.dead_job import Conditions, DeadFilter
from support.house import HERE

PROGRAM = Path(__file__).with_name("typed.py")

#: What somebody who checks strictly says of packages without types.
SETTINGS = "[mypy]\nstrict = True\nignore_missing_imports = True\n"


def test_a_users_program_passes_a_strict_check(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    settings = tmp_path / "mypy.ini"
    settings.write_text(SETTINGS)
    # Silent on what is imported, as on all that is installed.
    words = ["-m", "mypy", "--follow-imports=silent", "--no-incremental", "--config-file"]
    done = subprocess.run(
        [sys.executable, *words, settings, PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(HERE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_uses_what_users_can_import() -> None:
    """But for what only a name is to be had of: a class to derive from, or to name in a URL."""
    used = set(re.findall(r"\w+", PROGRAM.read_text()))
    rest = {"ForkedConnection", "SuperfetchError", "UnsupportedBroker", "WrongType"}
    rest |= {"SentinelTransport", "Transport"}
    assert {*celery_superfetch.__all__} - used == rest


def test_install_is_told_of_every_option() -> None:
    [written] = re.findall(r"\*,\n(.*?)\*\*kombu", Path(installation.__file__).read_text(), re.S)
    told = dict(re.findall(r"(\w+): (.*) = \.\.\.,", written))
    assert told == {name: Config.__annotations__[name] for name in told}
    assert set(Config.__annotations__) - set(told) == {"app_name"}, "which it sets itself"


def test_conditions_are_those_of_the_filter() -> None:
    assert Conditions.__annotations__.keys() == DeadFilter.__annotations__.keys()
