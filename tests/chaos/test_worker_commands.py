"""What a Celery worker sends for a job: exact, where a time would say how busy the machine is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from support.servers.commands import OURS, STOCK, commands
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.server import Server
from support.waiting import always, eventually

JOBS = 400
SLOTS = {"prefork": 2, "threads": 4, "solo": 1, "gevent": 4}
FOUR_EACH = "--prefetch-multiplier=4"

#: Commands a job. Where no job waits in a pool for its slot, few ask whether they may start.
MOST = {"prefork": 2.0, "threads": 2.5, "solo": 2.0, "gevent": 2.5}


@pytest.fixture
def own(fresh_server: Callable[..., Server]) -> Server:
    """The server's counts are everybody's."""
    return fresh_server()


@pytest.fixture
def cost(own: Server, make_app: Callable[..., Celery], worker: Any) -> Callable[[str, bool], float]:
    """`cost(pool, ours)`: commands a job, of a worker that finds a backlog of no-ops."""

    def measure(pool: str, ours: bool) -> float:
        if pool == "gevent":
            pytest.importorskip("gevent")
        producer = make_app(superfetch=False, url=own.url())
        for number in range(JOBS):
            producer.send_task("shop.add", (number, 1), ignore_result=True)
        client = own.client()
        client.config_resetstat()
        worker(
            superfetch=ours,
            url=own.url(),
            pool=pool,
            concurrency=SLOTS[pool],
            args=[FOUR_EACH, "--without-mingle", "--without-gossip", "--without-heartbeat"],
        )
        db = Database(client)
        eventually(lambda: not db.length() and not db.held() and not client.hlen("unacked"))
        return commands(own, OURS if ours else STOCK) / JOBS

    return measure


@pytest.mark.parametrize("pool", SLOTS)
def test_a_worker_sends_few_commands_for_a_job(
    cost: Callable[[str, bool], float], pool: str
) -> None:
    assert cost(pool, True) <= MOST[pool]


def test_the_control_stock_sends_several(cost: Callable[[str, bool], float]) -> None:
    assert cost("threads", False) >= 2 * MOST["threads"]


@pytest.mark.parametrize(("without", "kept"), [("", []), ("handover", ["done"])])
def test_an_ack_does_not_wait_for_the_job_that_runs_next_in_the_same_thread(
    worker: Any,
    shop: SimpleNamespace,
    ledger: Ledger,
    db: Database,
    without: str,
    kept: list[str],
) -> None:
    """It goes with that one's record. The control: nobody records."""
    shop.note.delay("done")
    shop.hold.delay("running")
    shop.note.delay("behind")
    env = {"WITHOUT": without}
    worker(env=env, pool="solo", concurrency=1, args=[FOUR_EACH], ready=False)
    eventually(lambda: ledger.starts().get("running"))
    held = [*kept, "running", "behind"]
    eventually(lambda: list(db.held().values()) == [held])
    always(lambda: list(db.held().values()) == [held], during=0.5)
    ledger.release()
    eventually(lambda: not db.held())
