"""Users have type information of what they call, although Celery brings none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import celery_superfetch
from celery_superfetch.app import installation
from celery_superfetch.model.config import Config
from celery_superfetch.model.dead_job import Conditions, DeadFilter
from celery_superfetch.transport.transport import KNOWN_OPTIONS
from support.house import HERE, PACKAGE

PROGRAM = Path(__file__).with_name("typed.py")

#: What somebody who checks strictly says of packages without types, as Celery is one.
SETTINGS = "[mypy]\nstrict = True\nignore_missing_imports = True\n"


def check(folder: Path, *leave_out: str) -> subprocess.CompletedProcess[str]:
    """Check the program where the package alone is installed: Celery has no types to bring."""
    pytest.importorskip("mypy")
    venv.create(folder / "venv")
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    left_out = shutil.ignore_patterns("__pycache__", *leave_out)
    shutil.copytree(HERE / PACKAGE, site / PACKAGE, ignore=left_out)
    (folder / "mypy.ini").write_text(SETTINGS)
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--no-incremental", "--config-file", "mypy.ini"),
            *("--python-executable", "venv/bin/python", PROGRAM),
        ],
        cwd=folder,
        env={name: os.environ[name] for name in os.environ.keys() - {"MYPYPATH", "PYTHONPATH"}},
        capture_output=True,
        text=True,
    )


def test_a_users_program_passes_a_strict_check(tmp_path):
    done = check(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_control_without_the_marker_there_are_no_types(tmp_path):
    done = check(tmp_path, "py.typed")
    assert done.returncode == 1
    assert 'Expression is of type "Any"' in done.stdout


def test_the_program_uses_what_users_can_import():
    """But for what only a name is to be had of: a class to derive from, or to name in a URL."""
    used = set(re.findall(r"\w+", PROGRAM.read_text()))
    rest = {"ForkedConnection", "StillInUse", "SuperfetchError", "UnsupportedBroker", "WrongType"}
    rest |= {"NotWhole", "SentinelTransport", "Transport", "UnsupportedVersion"}
    assert {*celery_superfetch.__all__} - used == rest


def declared(name: str) -> dict[str, str]:
    """Fields of a class that only type checkers see, each with its type."""
    [written] = re.findall(
        rf"class {name}\(.*?\n(.*?)\n\n", Path(installation.__file__).read_text(), re.S
    )
    return dict(re.findall(r"(\w+): (.*)", written))


def test_install_is_told_of_every_option():
    told = declared("Options")
    assert told == {name: Config.__annotations__[name] for name in told}
    rest = set(Config.__annotations__) - set(told) - set(declared("Kombu"))
    assert rest == {"app_name"}, "which it sets itself"


def test_install_is_told_of_options_that_kombu_has():
    named = {*declared("Kombu")}
    assert "socket_timeout" in named
    assert named <= KNOWN_OPTIONS


def test_conditions_are_those_of_the_filter():
    assert Conditions.__annotations__.keys() == DeadFilter.__annotations__.keys()
