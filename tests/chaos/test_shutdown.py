"""Told to stop, a worker finishes what runs, gives back the rest in order, and leaves nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness.database import Database
from harness.ledger import Ledger
from harness.waiting import eventually

RESERVED = [f"n{n}" for n in range(2)]
LATER = [f"eta{n}" for n in range(3)]


def keys_of(db: Database, owner: str) -> list[str]:
    """Whatever is left under an owner's name."""
    return [key for key in db.keys("superfetch:*") if owner in key]


def ran(ledger: Ledger) -> dict[str, int]:
    """Job -> how often it was started."""
    return {job: len(times) for job, times in ledger.starts().items()}


def fill(shop: SimpleNamespace, ledger: Ledger, db: Database) -> str:
    """A job runs, some are reserved and some wait for their time; the owner of them all."""
    shop.hold.delay("running")
    eventually(lambda: ledger.starts())
    for name in RESERVED:
        shop.note.delay(name)
    for name in LATER:
        shop.note.apply_async((name,), countdown=5)
    all_of_it = ["running", *RESERVED, *LATER]
    eventually(lambda: list(db.held().values()) == [all_of_it], message="all is claimed")
    return db.owner_of("running")


def test_a_warm_shutdown_gives_back_reserved_and_eta_jobs_and_leaves_no_key(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    one = worker(concurrency=1, args=["--prefetch-multiplier=10"])
    owner = fill(shop, ledger, db)
    one.term()
    one.wait_log("Warm shutdown")
    ledger.release()
    assert one.wait_exit() == 0
    # Celery runs what its pool has already been handed, and that was all that needs no waiting.
    given_back = db.waiting()
    assert given_back == [name for name in [*RESERVED, *LATER] if name not in ledger.finishes()]
    assert set(LATER) <= set(given_back)
    assert keys_of(db, owner) == []
    assert not db.private_lists()
    assert not db.owners()

    worker(concurrency=1)
    eventually(lambda: set(ledger.finishes()) == {"running", *RESERVED, *LATER})
    assert ran(ledger) == dict.fromkeys(["running", *RESERVED, *LATER], 1)
    assert db.stat("recovered") == 0


def test_a_cold_shutdown_gives_back_everything_in_order_and_counts_nothing(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    one = worker(concurrency=1, args=["--prefetch-multiplier=10"])
    owner = fill(shop, ledger, db)
    one.quit()
    one.wait_exit()
    assert db.waiting() == ["running", *RESERVED, *LATER]
    assert keys_of(db, owner) == []

    ledger.release()
    worker(concurrency=1)
    eventually(lambda: set(ledger.finishes()) == {"running", *RESERVED, *LATER})
    assert ran(ledger) == {"running": 2, **dict.fromkeys([*RESERVED, *LATER], 1)}
    assert db.stat("recovered") == 0


def test_a_group_that_is_told_to_stop_costs_nobody_a_strike(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    """As systemd does it: the pool's children get the SIGTERM, too, and die of it."""
    one = worker(concurrency=1, args=["--prefetch-multiplier=10"])
    owner = fill(shop, ledger, db)
    one.term_all()
    one.wait_exit()
    eventually(lambda: keys_of(db, owner) == [])
    assert [row for row in db.counters() if "strikes" in row] == []

    ledger.release()
    worker(concurrency=1)
    eventually(lambda: set(ledger.finishes()) == {"running", *RESERVED, *LATER})
    runs = ran(ledger)
    assert runs.pop("running") <= 2
    assert runs == dict.fromkeys([*RESERVED, *LATER], 1)
    assert not db.dead()


def test_a_worker_that_is_killed_while_it_stops_costs_nobody_a_strike(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    """A deploy whose patience ended: SIGTERM, and SIGKILL a while after."""
    one = worker(concurrency=1, args=["--prefetch-multiplier=10"])
    owner = fill(shop, ledger, db)
    one.term()
    eventually(lambda: db.fact(owner, "state") == "stopping", message="the registry knows")
    one.kill9_all()
    worker(concurrency=1)
    eventually(lambda: ran(ledger)["running"] == 2, message="it runs again")
    assert [row for row in db.counters() if "strikes" in row] == []
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {"running", *RESERVED, *LATER})
    assert ran(ledger) == {"running": 2, **dict.fromkeys([*RESERVED, *LATER], 1)}
