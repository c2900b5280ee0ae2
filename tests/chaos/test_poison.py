"""Every loop of crashes ends, in the dead set, and the caller is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis

from celery_superfetch import PoisonPill
from celery_superfetch.config import Config
from celery_superfetch.dead_set import DeadSet
from celery_superfetch.keys import Keys
from harness.database import Database
from harness.ledger import Ledger
from harness.waiting import always, eventually

#: The default, spelled out: these tests are about exactly this number of runs.
STRIKES = 3


def runs(ledger: Ledger, job: str) -> int:
    """How often a job was started."""
    return len(ledger.starts().get(job, []))


def test_a_job_that_kills_its_pool_child_runs_three_times_and_no_more(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    worker(concurrency=1)
    pill = shop.kill_child.delay("pill")
    shop.note.delay("bystander")
    with pytest.raises(PoisonPill, match=rf"killed after {STRIKES} strikes.*pool child lost"):
        pill.get(timeout=30)
    eventually(lambda: ledger.finishes().get("bystander"))
    assert runs(ledger, "pill") == STRIKES
    assert runs(ledger, "bystander") == 1
    (record,) = db.dead()
    assert record["task_id"] == pill.id
    assert record["queue"] == "celery"
    assert len(record["history"]) == STRIKES
    assert not db.counters()


def test_a_job_that_kills_its_worker_runs_three_times_and_no_more(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    pill = shop.kill_owner.delay("pill")
    for _ in range(STRIKES):
        worker(pool="solo", concurrency=1, ready=False).wait_exit()
    assert runs(ledger, "pill") == STRIKES
    assert not db.dead(), "nobody was left to judge the last death"
    worker(pool="solo", concurrency=1)
    with pytest.raises(PoisonPill, match=rf"killed after {STRIKES} strikes.*its process is gone"):
        pill.get(timeout=30)
    shop.note.delay("next")
    eventually(lambda: ledger.finishes().get("next"))
    assert runs(ledger, "pill") == STRIKES
    assert [record["task_id"] for record in db.dead()] == [pill.id]


def test_without_the_guard_a_poison_pill_goes_on(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    """The control: what ends the loop is the limit, and nothing else."""
    worker(concurrency=1, options={"strike_limit": 1000, "recovery_limit": 1000})
    shop.kill_child.delay("pill")
    # On a busy machine Celery notices a lost child only on its tick of 5 s.
    eventually(lambda: runs(ledger, "pill") > 2 * STRIKES, 90)
    assert not db.dead()


def test_a_hard_time_limit_without_ack_ends_too(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    worker(concurrency=1, conf={"task_acks_on_failure_or_timeout": False})
    pill = shop.hold.apply_async(("slow",), time_limit=1)
    eventually(lambda: db.dead(), message="it is killed")
    shop.note.delay("next")
    eventually(lambda: ledger.finishes().get("next"))
    assert runs(ledger, "slow") == STRIKES
    (record,) = db.dead()
    assert "hard time limit" in record["reason"]

    def told() -> bool:
        return isinstance(pill.result, PoisonPill)

    eventually(told, message="the caller is told of its death, not of the last timeout alone")


@pytest.mark.parametrize(
    "junk", [b"no message \xff at all", b"[]", b'{"body": ""}', b"null", b""], ids=repr
)
def test_an_item_that_is_no_message_is_put_aside_and_the_worker_goes_on(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, junk: bytes
) -> None:
    one = worker(pool="solo", concurrency=1)
    db.client.lpush("celery", junk)
    shop.note.delay("next")
    eventually(lambda: ledger.finishes().get("next"))
    eventually(lambda: len(db.dead()) == 1)
    one.wait_log("is not a kombu message")
    assert one.alive()
    (job,) = DeadSet(db.client, Keys(), Config())
    assert job.payload == junk
    eventually(lambda: not db.private_lists())


def test_junk_that_a_killed_worker_held_is_recovered_and_put_aside(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    victim = worker(pool="solo", concurrency=1)
    shop.hold.delay("running")
    eventually(lambda: ledger.starts())
    db.client.lpush(db.private_lists()[0], b"junk")
    victim.kill9_all()
    ledger.release()
    worker(pool="solo", concurrency=1)
    eventually(lambda: ledger.finishes().get("running"))
    eventually(lambda: len(db.dead()) == 1)
    eventually(lambda: not db.private_lists())


def test_a_job_retried_from_the_dead_set_runs_again_with_a_clean_record(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, client: redis.Redis
) -> None:
    worker(concurrency=1, options={"strike_limit": 2})
    shop.kill_child.delay("pill")
    eventually(lambda: len(db.dead()) == 1)
    assert runs(ledger, "pill") == 2
    dead_set = DeadSet(client, Keys(), Config())
    (job,) = dead_set
    assert dead_set.retry(job)
    eventually(lambda: runs(ledger, "pill") == 4 and len(db.dead()) == 1)
    assert runs(ledger, "pill") == 4


def test_another_app_recovers_a_job_but_does_not_kill_it(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    limits = {"strike_limit": 1, "reap_interval": 1}
    stranger = worker(app="apps.stranger", queues=["elsewhere"], concurrency=1, options=limits)
    shop.kill_owner.delay("pill")
    for death in (1, 2):
        worker(pool="solo", concurrency=1, options=limits, ready=False).wait_exit()
        eventually(lambda: db.on_probation() == ["pill"], message=f"recovered: death {death}")
    assert "belongs to app 'shop'" in stranger.log()
    assert not db.dead()
    always(lambda: runs(ledger, "pill") == 2, during=0.5, message="a stranger never runs it")
