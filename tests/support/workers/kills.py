"""A worker with jobs that run and jobs that wait, and its death."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import eventually

RUNNING = ["r0", "r1"]
RESERVED = [f"n{n}" for n in range(6)]


def fill(shop: SimpleNamespace, db: Database, running: list[str], claimed: int) -> str:
    """One worker runs `running` and has reserved more, until so many are `claimed`; its owner."""
    shop.run(*running)
    for name in RESERVED:
        shop.note.delay(name)
    eventually(lambda: sum(map(len, db.held().values())) >= claimed)
    return db.owner_of(running[0])


def recovered_by_its_neighbour(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, pool: str, how: str
) -> None:
    """What a killed worker ran runs again, and what it had reserved runs once."""
    running = RUNNING[:1] if pool == "solo" else RUNNING
    victim = worker(pool=pool, concurrency=len(running))
    # Solo reads nothing while it runs a job.
    owner = fill(shop, db, running, 1 if pool == "solo" else len(running) + 3)
    worker(pool=pool, concurrency=len(running))
    getattr(victim, how)()
    eventually(lambda: all(ledger.runs()[name] == 2 for name in running), message="they run again")
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {*running, *RESERVED})
    runs = {**dict.fromkeys(running, 2), **dict.fromkeys(RESERVED, 1)}
    assert ledger.runs() == runs, ledger.runs()
    assert db.fact(owner, "state") == "reaped"
    eventually(lambda: not db.private_lists() and not db.counters(), message="all is settled")
