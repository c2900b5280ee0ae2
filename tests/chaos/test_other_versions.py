"""A real worker on a version that lacks what jobs depend on: it says so, and claims nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.servers.database import Database


@pytest.mark.parametrize(
    ("name", "reshaped", "pool", "told"),
    [
        ("kombu.transport.redis:Channel._q_for_pri", "", "threads", "know the lists of a queue"),
        ("celery.worker.request:Request._payload", "", "solo", "would end the worker"),
        ("billiard.pool:ApplyResult.discard", "1", "prefork", "take a job back from the pool"),
        # Found when the pool has started, whose processes end with it.
        (
            "celery.concurrency.asynpool:AsynPool.on_job_process_down",
            "1",
            "prefork",
            "on_job_process_down(job,pid) in a started pool",
        ),
    ],
)
def test_a_worker_refuses_to_start(
    worker: Any, shop: SimpleNamespace, db: Database, name: str, reshaped: str, pool: str, told: str
) -> None:
    shop.note.delay("job")
    env = {"RENAMED": name, "RESHAPED": reshaped}
    one = worker(app="support.apps.renamed", pool=pool, env=env, ready=False)
    assert one.wait_exit()
    one.wait_gone()
    lines = [line for line in one.log().splitlines() if told in line]
    assert lines, one.tail()
    assert "Install a version that celery_superfetch was tested with" in lines[0]
    assert db.waiting() == ["job"]
    assert not db.owners()


def test_a_pool_without_processes_needs_nothing_of_them(worker: Any, shop: SimpleNamespace) -> None:
    env = {"RENAMED": "billiard.pool:ApplyResult.discard"}
    worker(app="support.apps.renamed", pool="threads", env=env)
    assert shop.add.delay(2, 3).get(timeout=30) == 5
