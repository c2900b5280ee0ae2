"""The server forgets a live owner (a flush, a deleted or evicted key): no job stays behind."""

from __future__ import annotations

import pytest

from support.servers.database import Database
from support.waiting import always, eventually

#: Nobody else gives anything back while these tests last.
ALONE = {"heartbeat_interval": 1, "reap_interval": 3600}
NAMES = "forgotten_names"


def forget(db: Database, *patterns: str) -> None:
    for pattern in patterns:
        db.client.delete(*db.keys(f"superfetch:{pattern}"))


@pytest.mark.parametrize("keys", [["*"], ["owners", "owner:*"]])
@pytest.mark.parametrize(("pool", "without"), [("threads", ""), ("solo", ""), ("threads", NAMES)])
def test_an_idle_worker_strands_no_job_once_it_is_forgotten(
    worker, shop, ledger, db, pool, without, keys
):
    """Its reads went on to claim for the old name, and nobody looked at what they brought."""
    queues = ["celery", "mail", "slow"]
    env = {"WITHOUT": without}
    idle = worker(pool=pool, concurrency=2, options=ALONE, queues=queues, env=env)
    shop.note.delay("warm")
    eventually(lambda: ledger.finishes() and not db.private_lists())
    [old] = db.owners()
    forget(db, *keys)
    eventually(lambda: {*db.owners()} - {old}, message="it has a new name")
    for queue in queues:
        shop.note.apply_async((queue,), queue=queue)
    if without:
        eventually(lambda: len(db.private_lists()) == 3)
        always(lambda: len(db.private_lists()) == 3, during=3, message="they are stranded")
        return
    eventually(lambda: {*queues} <= ledger.finishes().keys(), 10, message="all ran")
    assert set(ledger.runs().values()) == {1}
    eventually(lambda: not db.private_lists(), message="none is left behind")
    idle.wait_log(f"Redis no longer knows this worker (owner={old})")
    assert "declared dead" not in idle.log()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_waits_in_a_forgotten_worker_runs_all_the_same(worker, shop, ledger, db, pool):
    """One runs, three wait for a slot in Celery, one waits for its time."""
    worker(pool=pool, concurrency=1, options=ALONE, args=["--prefetch-multiplier=8"])
    shop.run("running")
    shop.note.apply_async(("late",), countdown=4)  # from 5 s on it is parked
    for number in range(3):
        shop.note.delay(f"job-{number}")
    eventually(lambda: sum(map(len, db.held().values())) == 5)
    [old] = db.owners()
    forget(db, "owner:*", "owners")
    eventually(lambda: {*db.owners()} - {old}, message="it has a new name")
    eventually(lambda: len(db.held().get(old, ())) == 1, message="the others went back")
    ledger.release()
    eventually(lambda: len(ledger.finishes()) == 5)
    assert set(ledger.runs().values()) == {1}
    eventually(lambda: not db.private_lists(), message="none is left behind")
