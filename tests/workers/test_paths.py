"""docs/contribute/architecture.md: its two paths, of one job and of one death, are those of a real
job and a real death. A worker writes down which functions it calls, and in which order."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.house import HERE
from support.servers.commands import blocked
from support.waiting import eventually

GUIDE = (HERE / "docs" / "contribute" / "architecture.md").read_text()
#: The most hops of a lone job on prefork, and files in which they are, that the docs may need.
HOPS_MAX, FILES_MAX = 23, 12


class Hop(NamedTuple):
    file: str
    function: str


FIRST_PASS = [
    Hop("app/reaper.py", "scheduled_pass_in_steps"),
    Hop("worker/maintenance.py", "OwnerMaintenance.tick"),
]


def path(heading: str) -> list[Hop]:
    """The hops below a heading of the guide."""
    [section] = re.findall(rf"(?ms)^## {heading}\n(.*?)(?=^## |\Z)", GUIDE)
    rows = re.findall(r"^\| (\d+) \| `([\w/.]+)` \| `([\w.]+)` \| \S", section, re.M)
    assert [int(number) for number, _, _ in rows] == [*range(1, len(rows) + 1)]
    return [Hop(file, function) for _, file, function in rows]


def is_call_of(line: str, hop: Hop) -> bool:
    _, file, name = line.split(" ", 2)
    return file == hop.file and name in (hop.function, hop.function.rpartition(".")[2])


class Calls:
    """The calls of a worker and its pool processes, the oldest first."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def since(self, begin: int) -> list[str]:
        lines = [line for line in self.file.read_text().splitlines() if line.count(" ") == 2]
        return sorted(
            (line for line in lines if int(line.split()[0]) >= begin),
            key=lambda line: int(line.split()[0]),
        )

    def went(self, hops: list[Hop], begin: int) -> bool:
        """Check that each hop was called after those before it."""
        calls = iter(self.since(begin))
        for number, hop in enumerate(hops, 1):
            assert any(is_call_of(call, hop) for call in calls), f"no hop {number} in order: {hop}"
        return True


@pytest.fixture
def follow(worker: Callable[..., Any], tmp_path: Path) -> Callable[[], Calls]:
    """Start a worker of one pool process that is followed, and wait until it is idle."""

    def start() -> Calls:
        file = tmp_path / "calls"
        options = {"heartbeat_interval": 1}
        worker(app="followed", concurrency=1, options=options, env={"CALLS": str(file)})
        return Calls(file)

    return start


def test_one_job_takes_the_path_that_the_guide_shows(follow, shop, ledger, client, db):
    hops = path("The path of one job")
    calls = follow()
    shop.ran("the first one, which has scripts loaded")
    eventually(lambda: not db.private_lists() and blocked(client), message="it waits for jobs")
    begin = time.monotonic_ns()
    shop.note.delay("alone")
    eventually(lambda: ledger.finishes().get("alone"))
    eventually(lambda: calls.went(hops, begin), every=0.2)
    assert ledger.runs()["alone"] == 1
    assert 0 < len(hops) <= HOPS_MAX
    assert len({hop.file for hop in hops}) <= FILES_MAX


def test_one_death_takes_the_path_that_the_guide_shows(follow, worker, shop, ledger, client):
    hops = path("The path of one death")
    calls = follow()
    victim = worker(concurrency=1, queues=["elsewhere"])
    shop.hold.apply_async(("held",), queue="elsewhere")
    eventually(lambda: ledger.starts().get("held"))
    eventually(lambda: calls.went(FIRST_PASS, 0), message="its first pass is over, which sees all")
    begin = time.monotonic_ns()
    victim.kill9_all()
    assert hops
    eventually(lambda: calls.went(hops, begin), every=0.2)
    assert client.llen("elsewhere") == 1
