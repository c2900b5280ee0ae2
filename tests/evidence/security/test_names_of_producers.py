"""Names that a producer chooses: none of them stays in Redis, or takes a place from others."""

from __future__ import annotations

from typing import Any

import pytest

from support.waiting import eventually
from support.workers.bench import payload

JOBS = 300


def named(client: Any) -> set[str]:
    """Tasks that the counters name."""
    rows = [row.decode().split("\t") for row in client.hkeys("superfetch:stats")]
    return {row[2] for row in rows if len(row) == 3} - {""}


@pytest.mark.parametrize("without", ["", "registered_names"], ids=["with", "control"])
def test_counters_name_registered_tasks_alone(worker, app, db, client, without):
    """2,001 names of others were enough, and none of the app's own came in any more."""
    worker(concurrency=2, env={"WITHOUT": without})
    sent = [payload(n, "celery", f"nobody.knows{n}") for n in range(JOBS)]
    client.lpush("celery", *sent)
    eventually(lambda: db.stat("killed") == JOBS and db.settled())
    app.send_task("shop.kill_child", ("registered",))
    eventually(lambda: "shop.kill_child" in named(client), 30)
    strange = {name for name in named(client) if name.startswith("nobody")}
    assert len(strange) == (JOBS if without else 0)
