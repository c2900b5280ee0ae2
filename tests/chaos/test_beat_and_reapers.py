"""The reaper runs in three places, so that each of them can fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import always, eventually

QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1}


def test_beat_reaps_when_no_worker_looks_after_the_others(
    worker: Any, beat: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    victim = worker(concurrency=1, options=QUICK)
    shop.hold.delay("running")
    eventually(lambda: ledger.starts())
    owner = db.owner_of("running")
    other = worker(env={"WITHOUT": "maintenance"}, concurrency=1, options=QUICK)
    victim.kill9_all()
    always(lambda: db.owner_of("running") == owner, during=3, message="the control: no reaper")
    beat(options=QUICK)
    eventually(lambda: ledger.runs()["running"] == 2, message="it runs again")
    other.wait_log("reap: 1 of 2 owners dead, recovered 1 jobs")
    ledger.release()
    eventually(lambda: ledger.finishes())
    assert ledger.runs()["running"] == 2


def test_the_task_of_beat_reports_and_the_users_own_entries_run(
    worker: Any, beat: Any, ledger: Ledger, db: Database
) -> None:
    tick = {"task": "shop.note", "schedule": 0.5, "args": ["tick"]}
    conf = {"beat_schedule": {"tick": tick}, "beat_max_loop_interval": 0.2}
    # At INFO neither says anything of a pass that had nothing to do.
    one = worker(concurrency=1, options=QUICK, conf=conf, loglevel="DEBUG")
    ours = beat(options=QUICK, conf=conf, loglevel="DEBUG")
    eventually(lambda: len(ledger.finishes().get("tick", [])) >= 3, message="the user's entry")
    ours.wait_log("Sending due task superfetch-reap (celery_superfetch.reap)")
    eventually(lambda: one.log().count("Task celery_superfetch.reap[") >= 4)

    def reports() -> list[str]:
        lines = [line for line in one.log().splitlines() if "celery_superfetch.reap[" in line]
        return [line.partition(": '")[2] for line in lines if "succeeded" in line]

    said = eventually(reports, message="the task's report is in the log")
    assert all(text.startswith(("reap: 0 of 1", "another pass had its turn")) for text in said)
    eventually(lambda: not db.private_lists(), message="its own runs leave nothing in flight")


def test_one_death_is_reaped_once_however_many_look(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    victim = worker(concurrency=2, options=QUICK)
    for name in ("a", "b"):
        shop.hold.delay(name)
    eventually(lambda: len(ledger.starts()) == 2)
    others = [worker(concurrency=1, options=QUICK) for _ in range(3)]
    victim.kill9_all()
    eventually(lambda: set(ledger.runs().values()) == {2})
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {"a", "b"})
    assert sum(one.log().count("is dead: its process is") for one in others) == 1
    assert db.stat("owners_reaped") == 1
    assert db.stat("recovered") == 2
    assert set(ledger.runs().values()) == {2}
