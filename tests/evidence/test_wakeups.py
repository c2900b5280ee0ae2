"""Jobs are taken when they come, on whichever queue; the delays are recorded, not judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import always, eventually


def test_the_first_job_of_a_fresh_worker_runs(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, record_property: Callable[..., None]
) -> None:
    """With mingle and gossip on, other channels consume beside the one that fetches jobs."""
    worker(concurrency=1, neighbours=True)
    sent = time.time()
    shop.note.delay("first")
    eventually(lambda: ledger.starts().get("first"), within=20)
    record_property("first_job_after_ready_seconds", ledger.starts()["first"][0] - sent)


def test_a_job_that_waited_for_the_worker_runs(
    worker: Any, shop: SimpleNamespace, ledger: Ledger
) -> None:
    shop.note.delay("early")
    worker(concurrency=1, neighbours=True)
    eventually(lambda: ledger.starts().get("early"), within=20)


def test_an_idle_worker_is_woken_on_every_priority(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, record_property: Callable[..., None]
) -> None:
    worker(concurrency=1, neighbours=True)
    for priority in (0, 3, 6, 9):
        sent = time.time()
        shop.note.apply_async((f"p{priority}",), priority=priority)
        eventually(lambda name=f"p{priority}": ledger.starts().get(name), within=20)
        delay = ledger.starts()[f"p{priority}"][0] - sent
        record_property(f"priority_{priority}_seconds", delay)


def test_an_added_queue_is_served_and_a_cancelled_one_is_left_alone(
    worker: Any,
    shop: SimpleNamespace,
    ledger: Ledger,
    db: Database,
    record_property: Callable[..., None],
) -> None:
    app = shop.note.app
    one = worker(concurrency=1, neighbours=True)
    # Just after its start it may not listen yet.
    add = partial(app.control.add_consumer, "extra", reply=True, timeout=2, limit=1)
    (answer,) = eventually(add, message="it has heard of the queue")
    assert "ok" in next(iter(answer.values()))
    sent = time.time()
    shop.note.apply_async(("added",), queue="extra")
    eventually(lambda: ledger.starts().get("added"), within=20)
    record_property("added_queue_seconds", ledger.starts()["added"][0] - sent)

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
    one.term()
    assert one.wait_exit() == 0
    assert set(ledger.runs().values()) == {1}


def test_cancelling_a_queue_that_is_being_drained_loses_nothing(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
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
