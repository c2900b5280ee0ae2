"""What this package changes in a process, beside the app that is installed: no more than the table
of docs/inside/process.md lists, each row of which is seen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from support.house import HERE
from support.process_changes import SCENES
from support.servers.server import Server

UNTIL_THE_END = "the process's end"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (HERE / "docs" / "inside" / "process.md").read_text().splitlines()
    if line.startswith("| `")
]
#: What a name of the table stands for -> until when it may be changed.
LISTED = {name: until for names, _, until, _ in ROWS for name in re.findall("`([^`]+)`", names)}

Changes = dict[str, dict[str, str]]
Played = Callable[..., Changes]


def listed(path: str) -> list[str]:
    """The names of the table that a changed path may have; a name has stars for any text."""
    path = re.sub(r"\.(filters|receivers)\[.*", r".\1", path)
    return [name for name in LISTED if re.fullmatch(re.escape(name).replace(r"\*", ".*"), path)]


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """What a scene changes that stock does not change in the same way."""
    server = Server().start()

    @cache
    def changes(scene: str, *more: str) -> Changes:
        command = [sys.executable, "-m", "support.process_changes", scene]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE / "tests"), str(HERE)])}
        both = [
            subprocess.Popen(
                [*command, server.url(database), *words],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for database, words in enumerate((more, ("stock",)))
        ]
        said = [one.communicate(timeout=200) for one in both]
        assert not any(one.returncode for one in both), said
        with_it, stock = (json.loads(out.splitlines()[-1]) for out, _ in said)
        return {
            when: {path: now for path, now in found.items() if stock[when].get(path) != now}
            for when, found in with_it.items()
        }

    yield changes
    server.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scene", SCENES)
def test_a_process_changes_as_the_table_lists(played, scene):
    changes = played(scene)
    unlisted = {path: is_now for path, is_now in changes["during"].items() if not listed(path)}
    assert not unlisted
    left = {
        path: is_now
        for path, is_now in changes["after"].items()
        if UNTIL_THE_END not in map(LISTED.__getitem__, listed(path))
    }
    assert not left


@pytest.mark.timeout(600)
def test_each_name_in_the_table_is_seen(played):
    changes = [played(scene) for scene in SCENES]
    paths = {path for found in changes for path in (*found["during"], *found["after"])}
    assert {name for path in paths for name in listed(path)} == {*LISTED}


@pytest.mark.timeout(300)
def test_other_changes_are_seen(played):
    """The control: one change of each kind."""
    changes = played("no_worker", "more")["after"]
    unlisted = {re.sub(r"\[(?!')[^'].*", "", path) for path in changes if not listed(path)}
    assert unlisted == {
        "celery.worker.control:Panel.data['ping']",
        "celery.app.task:Task.control_of_the_test",
        "celery.signals:task_retry.receivers",
        "logger celery.beat.level",
        "logger kombu.filters",
        "handler of SIGUSR2",
        "warnings.filters",
        "time:sleep",
        "environment['CONTROL']",
        "sys:excepthook",
    }
