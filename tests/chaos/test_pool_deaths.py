"""A child of the pool that dies while its worker looks at another that has died."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from harness.database import Database
from harness.ledger import Ledger
from harness.process import is_alive
from harness.waiting import eventually

Runs = Callable[[bool], int]


@pytest.fixture
def runs(
    worker: Any,
    app: Celery,
    shop: SimpleNamespace,
    ledger: Ledger,
    db: Database,
    tmp_path: Path,
) -> Runs:
    """How often a poison pill with two strikes ran, when it began unheard the first time."""

    def count(deaf: bool) -> int:
        funeral = tmp_path / "funeral"
        one = worker(
            app="apps.slow_funerals",
            concurrency=2,
            options={"strike_limit": 2},
            env={"FUNERAL": str(funeral), **({"DEAF": "1"} if deaf else {})},
        )
        # The worker looks at its latest child first: that one has to be alive still.
        first, last = sorted(one.children(), key=lambda child: child.pid)
        for job in ("one", "two"):
            shop.hold.delay(job)
        eventually(lambda: len(ledger.starts()) == 2)
        runner = {line["pid"]: line["job"] for line in ledger.lines("started")}
        ledger.release(runner[last.pid])
        eventually(lambda: list(ledger.finishes()) == [runner[last.pid]])
        eventually(lambda: [*db.held().values()] == [[runner[first.pid]]])
        last.send_signal(signal.SIGSTOP)
        pill = shop.kill_child.delay("pill")
        eventually(lambda: "pill" in db.running())
        assert app.control.ping(timeout=30, limit=1)  # by now it is in the child's pipe
        funeral.touch()
        first.kill()
        one.wait_log(f"pid:{first.pid} exited")
        last.send_signal(signal.SIGCONT)
        eventually(lambda: not is_alive(last))
        ledger.release(runner[first.pid])
        funeral.unlink()
        eventually(lambda: [record["task_id"] for record in db.dead()] == [pill.id])
        assert len(ledger.finishes()) == 2
        return len(ledger.starts()["pill"])

    return count


def test_each_of_its_runs_is_a_strike(runs: Runs) -> None:
    assert runs(False) == 2


def test_otherwise_it_runs_once_more(runs: Runs) -> None:
    assert runs(True) == 3
