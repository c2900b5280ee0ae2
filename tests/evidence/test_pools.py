"""Every pool, every way to prefetch: a programme of Celery's features, and nothing left at its end.

Pairs of pool and feature that run through the same code are tested once:
`-O fair` and autoscale's shrinking are prefork's; autoscale of the others differs in nothing that
the transport sees. The prefetch multipliers are arithmetic of the consumer: all of them with
prefork, the extremes with the others. Time limits exist in prefork, and the hard one in gevent;
terminating a running job in prefork and gevent. Threads and solo have neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import celery
import pytest

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import always, eventually
from support.workers.programme import Programme

STRIKES = 2
BACKLOG = [f"n{n}" for n in range(12)]


@dataclass(frozen=True)
class Line:
    """One worker of the matrix."""

    pool: str
    #: Jobs in flight while all its slots are taken.
    holds: int
    args: tuple[str, ...] = ()
    conf: dict[str, Any] = field(default_factory=dict)
    slots: int = 2

    @property
    def can_end_a_job(self) -> bool:
        """By a hard time limit, or a revoke that terminates."""
        return self.pool in ("prefork", "gevent")


ALL = 2 + len(BACKLOG) + 1
DISABLED = {"worker_disable_prefetch": True}
# Not by --prefetch-multiplier=0, which Celery takes for no option given.
UNLIMITED = {"worker_prefetch_multiplier": 0}
LINES = {
    "prefork-0": Line("prefork", ALL, conf=UNLIMITED),
    "prefork-1": Line("prefork", 2, ("--prefetch-multiplier=1",)),
    "prefork-4-fair": Line("prefork", 8, ("--prefetch-multiplier=4", "-O", "fair")),
    "prefork-disabled": Line("prefork", 2, conf=DISABLED),
    "threads-0": Line("threads", ALL, conf=UNLIMITED),
    "threads-1": Line("threads", 2, ("--prefetch-multiplier=1",)),
    "threads-disabled": Line("threads", 2, conf=DISABLED),
    "solo-1": Line("solo", 1, ("--prefetch-multiplier=1",), slots=1),
    "solo-4": Line("solo", 4, ("--prefetch-multiplier=4",), slots=1),
    "gevent-1": Line("gevent", 2, ("--prefetch-multiplier=1",)),
    "gevent-disabled": Line("gevent", 2, conf=DISABLED),
}


def left_behind(db: Database) -> dict[str, Any]:
    """What a clean end leaves of jobs and owners: nothing."""
    return {
        "private": db.private_lists(),
        "waiting": db.length(),
        "owners": db.owners(),
        "counters": db.counters(),
    }


NOTHING = {"private": [], "waiting": 0, "owners": [], "counters": []}


@pytest.fixture
def programme(shop: SimpleNamespace, ledger: Ledger) -> Iterator[Programme]:
    app = shop.note.app
    yield Programme(app, ledger)
    # A result that is collected when its server is gone would try to unsubscribe, for minutes.
    app.backend.result_consumer.subscribed_to.clear()


@pytest.mark.parametrize("name", LINES)
def test_features(name, worker, programme, ledger, db):
    line = LINES[name]
    if line.conf == DISABLED and celery.VERSION < (5, 6):
        pytest.skip("worker_disable_prefetch came with Celery 5.6")
    if line.conf == DISABLED and line.pool == "gevent" and celery.VERSION < (5, 7):
        pytest.skip("there Celery compares with the number of running greenlets, and never starts")
    holds = [programme.send("shop.hold", f"hold{n}") for n in range(line.slots)]
    programme.plain(BACKLOG)
    last = programme.send("shop.note", "revoked", runs=0)
    one = worker(
        app="features",
        pool=line.pool,
        concurrency=line.slots,
        args=line.args,
        conf=line.conf,
        options={"strike_limit": STRIKES},
    )
    eventually(lambda: len(ledger.starts()) == line.slots)
    held = lambda: sum(map(len, db.held().values()))  # noqa: E731
    eventually(lambda: held() == line.holds, 5, message="it claims as many as its prefetch allows")
    always(lambda: held() == line.holds, during=0.3, message="and no more")
    owner = db.owner_of("hold0")

    if line.pool == "solo":
        programme.app.control.revoke(last)
    else:
        programme.revoke(last)
    terminated = {holds.pop()} if line.can_end_a_job else set()
    for task_id in terminated:
        programme.revoke(task_id, terminate=True)
    for n, task_id in enumerate(holds):
        programme.returns(task_id, f"hold{n}")
    programme.etas()
    programme.expiring()
    programme.revoked_eta()
    programme.rejects()
    programme.retries()
    programme.failures()
    programme.early_acks()
    programme.rated()
    programme.batches()
    programme.canvas()
    if line.pool == "prefork":
        programme.soft_limit()
    if line.can_end_a_job:
        programme.hard_limit()
        programme.hard_limit_requeues(STRIKES)
    ledger.release()
    programme.check()
    # Where nothing is prefetched, the notice of what was killed may wait on its queue.
    eventually(db.settled, message="all is settled, and told")
    assert len(db.dead()) == line.can_end_a_job

    one.stop()
    assert left_behind(db) == NOTHING
    assert [key for key in db.keys("superfetch:*") if owner in key] == []
