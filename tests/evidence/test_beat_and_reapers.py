"""The reaper runs in three places, so that each of them can fail."""

from __future__ import annotations

from typing import Any

from support.waiting import always, eventually

QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1}


def test_beat_reaps_when_no_worker_looks_after_the_others(worker, beat, shop, ledger, db):
    victim = worker(concurrency=1, options=QUICK)
    shop.run("running")
    owner = db.owner_of("running")
    other = worker(env={"WITHOUT": "maintenance"}, concurrency=1, options=QUICK)
    victim.kill9_all()
    always(lambda: db.owner_of("running") == owner, during=3, message="the control: no reaper")
    beat(options=QUICK)
    eventually(lambda: ledger.runs()["running"] == 2, message="it runs again")
    other.wait_log("reap: 1 of 2 workers dead, 1 job recovered")
    ledger.release()
    eventually(lambda: ledger.finishes())
    assert ledger.runs()["running"] == 2


def test_the_task_of_beat_reports_and_the_users_own_entries_run(worker, beat, ledger, db):
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
    assert all(
        text.startswith(("reap: 0 of 1", "another process made the pass of this interval"))
        for text in said
    )
    eventually(lambda: not db.private_lists(), message="its own runs leave nothing in flight")


def beat_codes(cli: Any) -> set[str]:
    found = cli("status", "--json", options=QUICK).json()["findings"]
    return {one["code"] for one in found if one["code"].startswith("beat")}


def test_a_beat_that_stands_still_is_told_of_until_it_ticks_again(worker, beat, cli, db):
    worker(concurrency=1, options=QUICK)
    eventually(lambda: db.client.exists("superfetch:last_pass"), message="a worker has made a pass")
    assert not cli("status", "--json").json()["beats"], "who has no beat is not warned of it"
    one = beat(options=QUICK)
    [row] = eventually(lambda: cli("status", "--json").json()["beats"], message="it has ticked")
    assert (row["app"], row["pid"]) == ("shop", one.pid)
    assert not beat_codes(cli)

    one.freeze()
    eventually(lambda: beat_codes(cli) == {"beat-silent"}, message="it stands still")
    said = cli("check", "--json", options=QUICK, code=1).json()["findings"]
    assert f"beat of app shop on {row['host']} (pid {one.pid}) has not ticked for" in str(said)
    metrics = cli("metrics", "--once", options=QUICK).out
    assert 'superfetch_findings{code="beat-silent",level="warning"} 1.0' in metrics
    assert 'superfetch_beat_age_seconds{app="shop"}' in metrics
    one.thaw()
    eventually(lambda: not beat_codes(cli), message="it ticks again")

    def row_of_it() -> Any:
        return cli("status", "--json").json()["beats"][0]

    # It is late by its own pace, and it stood still between the last two.
    eventually(lambda: row_of_it()["interval"] < 3, message="it ticks as ever")
    one.signal(9)
    one.wait_gone()
    eventually(lambda: beat_codes(cli) == {"beat-silent"}, message="nobody ticks")
    beat(options=QUICK)
    eventually(lambda: not beat_codes(cli), message="another server took its place")


def test_whoever_sends_our_task_by_hand_is_no_beat(make_app, worker, cli):
    one = worker(concurrency=1, options=QUICK, loglevel="DEBUG")
    make_app().tasks["celery_superfetch.reap"].delay()
    one.wait_log("Task celery_superfetch.reap[")
    assert not cli("status", "--json").json()["beats"]


def test_one_death_is_reaped_once_however_many_look(worker, shop, ledger, db):
    victim = worker(concurrency=2, options=QUICK)
    shop.run("a", "b")
    others = [worker(concurrency=1, options=QUICK) for _ in range(3)]
    victim.kill9_all()
    eventually(lambda: set(ledger.runs().values()) == {2})
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {"a", "b"})
    assert sum(one.log().count("declared dead (owner=") for one in others) == 1
    assert db.stat("owners_reaped") == 1
    assert db.stat("recovered") == 2
    assert set(ledger.runs().values()) == {2}
