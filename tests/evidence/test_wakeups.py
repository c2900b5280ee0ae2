"""Jobs are taken when they come, on whichever queue: of more queue lists than there are blocking
reads, and over a network that breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from support.servers.database import Database
from support.servers.faults import kill_connections
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.proxy import FaultProxy
from support.waiting import always, eventually


def test_an_idle_worker_is_woken_on_every_priority(worker, shop, ledger):
    """With mingle and gossip on, other channels consume beside the one that fetches jobs."""
    shop.note.delay("before its start")
    worker(concurrency=1, neighbours=True)
    eventually(lambda: ledger.starts().get("before its start"), within=20)
    for priority in (0, 3, 6, 9):
        shop.note.apply_async((f"p{priority}",), priority=priority)
        eventually(lambda name=f"p{priority}": ledger.starts().get(name), within=20)


def test_an_added_queue_is_served_and_a_cancelled_one_is_left_alone(worker, shop, ledger, db):
    app = shop.note.app
    one = worker(concurrency=1, neighbours=True)
    # Just after its start it may not listen yet.
    add = partial(app.control.add_consumer, "extra", reply=True, timeout=2, limit=1)
    (answer,) = eventually(add, message="it has heard of the queue")
    assert "ok" in next(iter(answer.values()))
    shop.note.apply_async(("added",), queue="extra")
    eventually(lambda: ledger.starts().get("added"), within=20)

    (answer,) = app.control.cancel_consumer("extra", reply=True, timeout=10, limit=1)
    assert "ok" in next(iter(answer.values()))
    names = [f"later{n}" for n in range(3)]
    for name in names:
        shop.note.apply_async((name,), queue="extra")
    shop.note.delay("celery")
    eventually(lambda: ledger.starts().get("celery"), within=20)
    always(lambda: db.waiting("extra") == names, during=1, message="nobody takes from it")
    eventually(lambda: not db.private_lists())

    worker(concurrency=1, queues=["extra"])
    eventually(lambda: set(names) <= set(ledger.finishes()))
    one.stop()
    assert set(ledger.runs().values()) == {1}


def test_cancelling_a_queue_that_is_being_drained_loses_nothing(worker, shop, ledger, db):
    """Claimed but not yet delivered when the queue is cancelled: given back, in order."""
    app = shop.note.app
    one = worker(concurrency=1, queues=["celery", "extra"], args=["--prefetch-multiplier=64"])
    names = [f"n{n}" for n in range(300)]
    for name in names:
        shop.note.apply_async((name,), queue="extra")
    eventually(lambda: ledger.starts())
    app.control.cancel_consumer("extra", reply=True, timeout=10, limit=1)
    # What Celery had been given by then it runs; the rest waits.
    eventually(lambda: not db.private_lists(), message="what was delivered has run")
    left = db.waiting("extra")
    assert left == names[len(names) - len(left) :], "given back in its old order"
    assert set(ledger.finishes()) == set(names) - set(left)
    worker(concurrency=1, queues=["extra"])
    eventually(lambda: len(ledger.finishes()) == len(names))
    assert set(ledger.runs().values()) == {1}
    assert one.alive()


def test_what_is_reserved_runs_though_no_queue_is_consumed_and_connections_break(
    worker, shop, ledger, db
):
    """As before a deploy: consume nothing more, and wait until it has nothing. A doubt about lost
    replies was looked into with the next claim only, and until then nothing started."""
    app, hasty = shop.note.app, {"heartbeat_interval": 0.5, "owner_ttl": 10}
    one = worker(concurrency=1, args=["--prefetch-multiplier=4"], options=hasty)
    shop.run("running")
    for name in ("n0", "n1", "n2"):
        shop.note.delay(name)
    eventually(lambda: [len(jobs) for jobs in db.held().values()] == [4], message="all are taken")
    assert app.control.cancel_consumer("celery", reply=True, timeout=10, limit=1)
    one.wait_log("Canceling queue")
    # Not that which brings remote control: at its loss Celery lets go of all that waits.
    db.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    always(lambda: one.alive(), during=2, message="its next heartbeats come by another one")
    ledger.release("running")
    eventually(lambda: not any(db.held().values()), message="all have run")
    assert ledger.runs() == dict.fromkeys(("running", "n0", "n1", "n2"), 1)


QUEUES = [f"q{number}" for number in range(20)]
#: The first and the last steps: the last has no connection that waits on it.
PRIORITIES = (0, 9)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_job_of_any_queue_runs_once_however_connections_break(
    pool, fresh_server, make_app, worker
):
    own = fresh_server(appendonly=True)
    client = own.client()
    with FaultProxy(own.port) as proxy:
        url, books = proxy.url(), own.url(LEDGER_DB)
        app = make_app(url=own.url(), ledger_url=books)
        one = worker(
            url=url, ledger_url=books, pool=pool, concurrency=2, queues=QUEUES, args=["-l", "INFO"]
        )
        ledger, sent = Ledger(books), 0

        def all_run() -> None:
            nonlocal sent
            for queue in QUEUES:
                for priority in PRIORITIES:
                    sent += 1
                    app.tasks["shop.note"].apply_async((str(sent),), queue=queue, priority=priority)
            eventually(lambda: len(ledger.finishes()) == sent, within=60, message="all have run")

        def breaks(how: Callable[[], object]) -> None:
            how()
            all_run()

        all_run()
        breaks(proxy.cut)
        breaks(lambda: kill_connections(client))
        breaks(own.restart)
        assert one.alive()
        assert set(ledger.runs().values()) == {1}, "each ran once"
        db = Database(client)

        def nothing_is_left() -> bool:
            held, waiting = db.held(), {queue: client.llen(queue) for queue in QUEUES}
            assert not held
            assert not sum(waiting.values())
            return True

        eventually(nothing_is_left)
        ledger.close()
