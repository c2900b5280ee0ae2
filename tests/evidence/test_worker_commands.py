"""What a Celery worker sends for a job: exact, where a time would say how busy the machine is."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import redis

from celery_superfetch.model.owner_rank import MOST_READS
from support.servers.commands import OURS, STOCK, commands
from support.servers.database import Database
from support.servers.server import Server
from support.waiting import always, eventually

JOBS = 400
LONE_JOBS = 20
SLOTS = {"prefork": 2, "threads": 4, "solo": 1, "gevent": 4}
FOUR_EACH = "--prefetch-multiplier=4"

#: Commands a job. Where no job waits in a pool for its slot, few ask whether they may start.
MOST = {"prefork": 2.0, "threads": 2.5, "solo": 2.0, "gevent": 2.5}


@pytest.fixture
def own(fresh_server: Any) -> Server:
    """The server's counts are everybody's."""
    return fresh_server()


@pytest.fixture
def cost(own: Server, make_app: Any, worker: Any) -> Callable[[str, bool], float]:
    """`cost(pool, ours)`: commands a job, of a worker that finds a backlog of no-ops."""

    def measure(pool: str, ours: bool) -> float:
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
        eventually(lambda: db.settled() and not client.hlen("unacked"))
        return commands(own, OURS if ours else STOCK) / JOBS

    return measure


@pytest.mark.parametrize("pool", SLOTS)
def test_a_worker_sends_few_commands_for_a_job(cost, pool):
    assert cost(pool, True) <= MOST[pool]


def test_the_control_stock_sends_several(cost):
    assert cost("threads", False) >= 2 * MOST["threads"]


#: Nothing is due in that time but what a job asks for.
CALM = {"heartbeat_interval": 60, "owner_ttl": 600, "reap_interval": 600}
LONE = [(pool, 1) for pool in SLOTS] + [("solo", 4), ("prefork", 4)]


@pytest.fixture
def lone(own: Server, make_app: Any, worker: Any) -> Callable[..., tuple[float, float]]:
    """`lone(pool, queues, ours)`: the commands that a worker sends for a job that comes alone, and
    the calls that the server makes for it, the producer's LPUSH and those of scripts among them.

    Of many jobs it is the median: now and then something else is due.
    """

    def measure(pool: str, queues: int, ours: bool) -> tuple[float, float]:
        if pool == "gevent":
            pytest.importorskip("gevent")
        names = ["celery", *(f"q{n}" for n in range(1, queues))]
        worker(
            superfetch=ours,
            url=own.url(),
            pool=pool,
            concurrency=SLOTS[pool],
            queues=names,
            options=CALM if ours else {},
            args=["--without-mingle", "--without-gossip", "--without-heartbeat"],
        )
        producer = make_app(superfetch=False, url=own.url())
        client = redis.Redis.from_url(own.url(), single_connection_client=True)
        mine = client.client_info()["addr"]
        # Those that wait: ours for a job by BLMOVE, stock's by BRPOP.
        waiting = {"solo": 1}.get(pool, MOST_READS) if ours else 1

        def rests() -> bool:
            blocked = [row for row in client.client_list() if "b" in row["flags"]]
            return len(blocked) == waiting and Database(client).length() == 0

        def job(number: int) -> None:
            producer.send_task("shop.add", (number, 1), ignore_result=True, queue="celery")
            eventually(rests)
            always(rests, during=0.1)  # longer than what comes at once

        eventually(rests)
        job(0)
        costs = []
        with redis.Redis.from_url(own.url()) as listener, listener.monitor() as told:
            for number in range(LONE_JOBS):
                job(number)
                client.echo("that is all")
                sent = executed = 0
                while (said := told.next_command())["command"] != "ECHO that is all":
                    if f"{said['client_address']}:{said['client_port']}" != mine:
                        executed += 1
                        sent += said["client_type"] != "lua" and said["command"][:5] != "LPUSH"
                costs.append((sent, executed))
        return median(sent for sent, _ in costs), median(executed for _, executed in costs)

    return measure


@pytest.mark.parametrize(("pool", "queues"), LONE)
def test_a_lone_job_costs_a_lone_job(lone, pool, queues):
    sent, executed = lone(pool, queues, True)
    assert sent <= 3
    assert executed <= 9


def test_the_control_stock_sends_nine(lone):
    sent, executed = lone("solo", 1, False)
    assert sent >= 9
    assert executed >= 10


@pytest.mark.parametrize(("without", "kept"), [("", []), ("handover", ["done"])])
def test_an_ack_does_not_wait_for_the_job_that_runs_next_in_the_same_thread(
    worker, shop, ledger, db, without, kept
):
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


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_limit_of_one_connection_is_kombus_alone(worker, app, shop, ledger, pool):
    """The loop and the maintenance of a worker had two between them, and an ack keeps one."""
    conf = {"broker_transport_options": {"max_connections": 1}}
    busy = {"reap_interval": 1, "heartbeat_interval": 1}
    limited = worker(pool=pool, neighbours=True, args=["-E"], options=busy, conf=conf)
    jobs = {f"job{n}" for n in range(100)}
    for job in jobs:
        shop.note.delay(job)
    eventually(lambda: jobs == ledger.finishes().keys())
    assert app.control.ping(timeout=3)
    limited.stop()
    assert "Too many connections" not in limited.log()
    assert "re-establish" not in limited.log()
