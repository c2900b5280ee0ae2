"""The project in `examples/django/`: its worker is killed, and its jobs run again."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.process import Process
from support.recipes import EXAMPLES
from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.worker import process_env

pytest.importorskip("django", reason="django is not installed")

#: The line that makes the project fetch reliably; the control is the project without it.
INSTALL = "celery_superfetch.install(app)"


class Order(NamedTuple):
    runs: int
    packed_by: str
    courier_calls: int


class Project:
    """A copy of the project with a server of its own."""

    def __init__(self, folder: Path, server: Server, keep: Callable[[Any], Any]) -> None:
        self.folder, self._keep = folder, keep
        self.database = folder / "shop.sqlite3"
        shutil.copytree(EXAMPLES / "django", folder)
        self.env = process_env(
            {"CELERY_BROKER_URL": server.url(0), "CELERY_RESULT_BACKEND": server.url(1)}
        )
        self.manage("migrate", "--verbosity", "0")

    def use_stock(self, instead: str) -> None:
        """Replace the line of ``install()``."""
        module = self.folder / "shop" / "celery.py"
        text = module.read_text()
        assert text.count(INSTALL) == 1
        module.write_text(text.replace(INSTALL, instead))

    def manage(self, *words: str) -> str:
        argv = [sys.executable, "manage.py", *words]
        done = subprocess.run(
            argv, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_worker(self, name: str, concurrency: int) -> Process:
        words = f"-A shop worker -n {name}@%h -c {concurrency} -l INFO"
        worker: Process = self._keep(
            Process(
                [sys.executable, "-m", "celery", *words.split()],
                log=self.folder.parent / f"{name}.log",
                env=self.env,
                cwd=self.folder,
                title=f"worker {name}",
            )
        )
        worker.wait_log(" ready.", 60)
        return worker

    def hurry(self) -> None:
        """Make every later run short."""
        with closing(sqlite3.connect(self.database, timeout=30)) as db, db:
            db.execute("UPDATE orders_order SET seconds = 0.1")

    def orders(self) -> list[Order]:
        with closing(sqlite3.connect(self.database, timeout=30)) as db:
            rows = db.execute(
                "SELECT runs, packed_by, courier_calls FROM orders_order ORDER BY id"
            ).fetchall()
        return [Order(*row) for row in rows]


@pytest.fixture
def project(
    fresh_server: Callable[..., Server], tmp_path: Path, keep: Callable[[Any], Any]
) -> Project:
    return Project(tmp_path / "project", fresh_server(), keep)


def kill_in_the_middle(project: Project) -> None:
    """Kill a worker while the two jobs of the first of three orders run, and four jobs wait in its
    memory. Later runs are short."""
    victim = project.start_worker("one", 2)
    project.manage("order", "3", "--courier", "--seconds", "200")
    eventually(lambda: project.orders() == [Order(1, "", 1), *[Order(0, "", 0)] * 2], 30)
    eventually(lambda: victim.log().count("received") == 6, message="it has fetched all jobs")
    victim.signal_all(signal.SIGKILL)
    victim.wait_gone()
    project.hurry()


@pytest.mark.timeout(180)
def test_the_jobs_of_a_killed_worker_run_again_and_no_courier_is_called_twice(project):
    kill_in_the_middle(project)
    second = project.start_worker("two", 2)
    eventually(lambda: all(order.packed_by.startswith("two@") for order in project.orders()), 60)
    assert [order.runs for order in project.orders()] == [2, 1, 1], "once more if it had run"
    eventually(lambda: [order.courier_calls for order in project.orders()] == [1, 1, 1])
    second.signal(signal.SIGTERM)
    assert second.wait_exit() == 0
    assert project.manage("order").count("1 courier calls") == 3, "the first was lost, not repeated"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "instead",
    [
        pytest.param("", id="as it comes"),
        pytest.param("app.conf.task_acks_late = True", id="late acks"),
    ],
)
def test_the_control_with_stock_celery_no_job_runs_again(project, instead):
    """Stock loses a job that was acked before it ran, and keeps all others of a killed worker for
    the visibility timeout, which is an hour."""
    project.use_stock(instead)
    kill_in_the_middle(project)
    left = project.orders()
    project.start_worker("two", 2)
    project.manage("order", "1", "--seconds", "0.1")
    eventually(lambda: project.orders()[3].packed_by.startswith("two@"), 30)
    always(lambda: project.orders()[:3] == left, during=5)
