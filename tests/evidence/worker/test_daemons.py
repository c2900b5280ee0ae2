"""Workers that `celery multi` sends to the background."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.waiting import eventually
from support.workers.worker import process_env


@pytest.fixture
def multi(env: Callable[..., dict[str, str]], tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`multi("start", ...)`: the real command; what it started ends with the test."""

    def run(*argv: str) -> str:
        command = [sys.executable, "-m", "celery", "multi", *argv]
        files = [f"--pidfile={tmp_path}/%n.pid", f"--logfile={tmp_path}/%n.log"]
        done = subprocess.run(
            [*command, *files],
            env=process_env(env()),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    for pidfile in tmp_path.glob("*.pid"):
        main = psutil.Process(int(pidfile.read_text()))
        for process in (*main.children(recursive=True), main):
            process.send_signal(signal.SIGKILL)


def test_celery_multi_starts_and_stops_workers(multi, shop, ledger, db):
    """Daemons: they fork twice before they consume."""
    start = ("one", "two", "-A", "support.apps.shop", "-c", "1", "-P", "prefork", "-l", "INFO")
    quiet = ("--without-mingle", "--without-gossip", "--prefetch-multiplier=2")
    multi("start", *start, *quiet)
    eventually(lambda: len(db.owners()) == 2)
    jobs = ["a", "b", "c", "d"]
    for name in jobs:
        shop.hold.delay(name)
    eventually(lambda: len(ledger.starts()) == 2 and db.length() == 0)
    shop.note.delay("waits")
    multi("stop", "one", "two")
    ledger.release()
    eventually(lambda: db.owners() == [], message="the workers are gone")
    ran, waiting = sorted(ledger.finishes()), db.waiting()
    assert len(ran) == 2
    assert sorted(waiting[:2] + ran) == jobs
    assert waiting[2:] == ["waits"]
    assert db.private_lists() == []
    multi("start", *start, *quiet)
    eventually(lambda: len(ledger.finishes()) == 5 and len(db.owners()) == 2)
    assert set(ledger.runs().values()) == {1}
    multi("stopwait", "one", "two")  # it waits for the pid files to go, a little too short
    eventually(lambda: db.owners() == [], message="the workers are gone")
