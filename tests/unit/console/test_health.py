"""What is wrong, and what to do about it, by an overview alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from celery_superfetch.console.finding import Finding
from celery_superfetch.console.findings_of_jobs import DEAD_LETTERED_MANY
from celery_superfetch.console.findings_of_workers import STOPPING_LONG_S
from celery_superfetch.console.health import findings, verdict
from celery_superfetch.console.overview import DEATHS_SHOWN, by_queue, consumers_of
from celery_superfetch.model.humanize import span
from celery_superfetch.model.verdict import Reason
from support.well import MIB, WELL


@pytest.fixture
def seen() -> dict[str, Any]:
    return copy.deepcopy(WELL)


DEATH = {
    "owner": "vm|9|bb",
    "node": "a@vm",
    "state": "running",
    "reason": "its process is gone",
    "recovered": 7,
    "killed": 0,
    "at": "2026-01-02T02:58:30.000+00:00",
}


def only(seen: dict[str, Any]) -> Finding:
    [found] = findings(seen)
    return found


def test_all_is_well(seen):
    assert findings(seen) == []
    assert verdict([], seen) == (
        "All is well: 1 worker, 12 jobs in flight, 40 waiting, 3 in the dead set."
    )


def test_the_worst_comes_first_and_with_what_to_do(seen):
    seen["dead_set"]["unannounced"] = 2
    seen["queues"][0]["consumers"] = 0
    seen["queues"][0].update(length=302, oldest=14 * 60 + 20.0)
    found = findings(seen)
    assert [one.code for one in found] == ["no-consumer", "unannounced"]
    assert verdict(found, seen) == (
        "Critical: queue mail: 312 jobs, oldest 14 min, no worker consumes it: "
        "start a worker with -Q mail. (1 more below)"
    )


def test_a_setting_does_not_stand_above_what_has_just_happened(seen):
    seen["server"].update(append_only=False)
    assert verdict(findings(seen), seen).startswith("Warning: the server keeps jobs in memory")
    seen["deaths"] = [{**DEATH, "node": "b@vm"}]
    found = findings(seen)
    assert [one.code for one in found] == ["worker-died", "no-persistence"]
    assert verdict(found, seen).startswith("Note: worker b@vm died 90 s ago")
    assert verdict(found, seen).endswith("(1 more below)")
    seen["dead_set"]["unannounced"] = 2
    codes = [one.code for one in findings(seen)]
    assert codes == ["unannounced", "worker-died", "no-persistence"]


def test_a_queue_that_does_not_move_names_its_full_pools(seen):
    seen["queues"][0]["oldest"] = seen["queues"][1]["oldest"] = 900.0
    assert "busy" not in only(seen).text
    seen["owners"][0]["running"] = 4
    assert only(seen).text.endswith("none has been claimed for 15 min; all their 4 slots are busy")


@pytest.mark.parametrize("state", ["stopping", "silent", "hung"])
def test_a_worker_that_starts_no_job_is_no_consumer(seen, state):
    row = {"verdict": "alive", "unconsumed": []}
    states = consumers_of({**row, "state": state, "queues": [name]} for name in ("mail", "mail"))
    running = consumers_of([{**row, "state": "running", "queues": ["mail"]}])
    assert (states["mail"]["running"], running["mail"]["running"]) == (0, 1)
    seen["queues"][0].update(consumers=0, not_consuming=dict(states["mail"]))
    assert only(seen).code == "no-consumer"
    assert f"no worker consumes it (2 {state})" in only(seen).text


def test_a_full_server_refuses_writes_already(seen):
    seen["server"].update(used_memory=110 * MIB)
    assert only(seen).text == "the server uses 110% of its maxmemory; it refuses writes"


@pytest.mark.parametrize(("share", "what"), [(1.1, "it evicts"), (0.9, "at 100% it evicts")])
def test_a_full_server_that_evicts_refuses_no_write(seen, share, what):
    seen["server"].update(used_memory=share * 100 * MIB, eviction_policy="allkeys-lru")
    [text] = [found.text for found in findings(seen) if found.code == "memory"]
    assert text == f"the server uses {share:.0%} of its maxmemory; {what} keys"


def test_an_unknown_age_is_not_zero(seen):
    def oldest() -> float | None:
        return by_queue(seen["queues"])[0]["oldest"]

    assert oldest() == 9.0
    seen["queues"][0]["oldest"] = None
    assert oldest() is None, "no pass has noted since when its jobs wait"
    for row in seen["queues"]:
        row["length"] = 0
    assert oldest() == 0.0


def test_a_queue_name_is_quoted_for_the_shell(seen):
    seen["queues"] = [{**seen["queues"][0], "queue": "a; reboot", "consumers": 0}]
    assert only(seen).fix == "start a worker with -Q 'a; reboot'"


def test_a_note_alone_does_not_spoil_the_verdict(seen):
    seen["owners"].append(
        {**seen["owners"][0], "verdict": "dead", "reason": "gone", "in_flight": 0}
    )
    assert only(seen)[:2] == ("note", "dead-owner")
    assert verdict(findings(seen), seen).startswith("All is well")


def test_jobs_of_a_dead_owner_are_for_the_next_pass_if_there_is_one(seen):
    seen["owners"].append({**seen["owners"][0], "verdict": "dead", "reason": "its process is gone"})
    assert only(seen).fix == "the next reap pass, within 10 s, recovers its jobs"
    seen["owners"].pop(0)
    found = next(one for one in findings(seen) if one.code == "dead-owner")
    assert found.level == "critical"
    assert (
        found.text
        == "worker a@vm on vm is dead (its process is gone); its 12 jobs wait to be recovered"
    )
    assert found.fix == "run `celery -A shop superfetch reap`"


def test_what_runs_for_too_long_is_told_of_by_task(seen):
    one = {"task": "shop.scan", "id": "a", "digest": "d", "seconds": 15000}
    seen["owners"][0]["long_runs"] = [one, {**one, "id": "b", "seconds": 18100}]
    found = only(seen)
    assert (found.level, found.code) == ("warning", "long-running-job")
    assert found.text == "2 jobs of shop.scan have run for more than 4 h, b on a@vm for 5 h"
    assert "control terminate SIGTERM b`" in found.fix


def test_a_job_that_stops_cut_short_again_and_again_is_named(seen):
    one = {"task": "shop.scan", "id": "a", "digest": "d", "queue": "mail", "stops": 12}
    seen["stopped"] = [one, {**one, "stops": 10}]
    found = only(seen)
    assert (found.level, found.code) == ("warning", "stopped-job")
    assert found.text.startswith("job shop.scan[a] on queue mail was cut short 12 times")
    assert found.text.endswith("and 1 more at least 10 times")


def test_workers_that_die_again_and_again_are_a_warning_although_they_are_started_again(seen):
    """The control: two deaths, or those of workers that were told to stop, are none."""
    seen["deaths"] = [{**DEATH} for _ in range(3)]
    found = only(seen)
    assert found[:2] == ("warning", "worker-died")
    assert found.text == (
        "worker a@vm died 90 s ago (its process is gone), 7 jobs recovered, and 2 more died "
        "within the hour"
    )
    assert "whether it was the same job each time" in found.fix
    assert not verdict([found], seen).startswith("All is well")
    seen["deaths"][2]["state"] = "stopping"
    assert not findings(seen)
    seen["deaths"] = [{**DEATH, "reason": Reason.SUPERSEDED.value} for _ in range(3)]
    assert not findings(seen), "a restart by HUP is no death"
    seen["deaths"] = [{**DEATH, "at": "2026-01-02T01:58:30.000+00:00"} for _ in range(3)]
    assert not findings(seen), "that was more than an hour ago"
    seen["deaths"] = [{**DEATH} for _ in range(3)]
    del seen["deaths"][2]
    assert not findings(seen)


def test_in_a_large_fleet_a_tenth_of_the_workers_has_to_die(seen):
    [owner, *_] = seen["owners"]
    seen["owners"] = [{**owner, "node": f"w{n}@vm", "owner": f"vm|{n}|aa"} for n in range(50)]
    seen["deaths"] = [{**DEATH, "node": "w1@vm"} for _ in range(4)]
    assert not findings(seen)
    seen["deaths"].append({**DEATH, "node": "w2@vm"})
    assert only(seen).level == "warning"


def test_who_died_lately_and_is_not_back(seen):
    seen["deaths"] = [
        {**DEATH, "node": "b@vm"},
        {**DEATH, "node": "c@vm", "at": "2026-01-02T01:58:30.000+00:00"},
    ]
    found = only(seen)
    assert found[:2] == ("note", "worker-died")
    assert found.text == ("worker b@vm died 90 s ago (its process is gone), 7 jobs recovered")
    assert "start it again" in found.fix
    seen["deaths"][0].update(recovered=0)
    assert only(seen).text.endswith("(its process is gone), it held no job")
    seen["deaths"][0].update(recovered=1, killed=2)
    assert only(seen).text.endswith("1 job recovered and 2 jobs moved to the dead set")
    seen["deaths"][0].update(recovered=7, killed=0)
    seen["deaths"].insert(1, {**seen["deaths"][0], "node": ""})
    assert only(seen).text.endswith("7 jobs recovered, and 1 more died within the hour")
    seen["owners"][0]["node"] = "b@vm"
    assert only(seen).text.startswith("worker vm|9|bb died"), "the other is back"


def test_of_more_deaths_than_it_knows_it_names_no_number(seen):
    seen["deaths"] = [{**DEATH, "node": f"b{number}@vm"} for number in range(DEATHS_SHOWN)]
    assert only(seen).text.endswith(f", and at least {DEATHS_SHOWN - 1} more died within the hour")
    del seen["deaths"][0]
    assert only(seen).text.endswith(f", and {DEATHS_SHOWN - 2} more died within the hour")


def test_a_process_that_may_still_run_was_declared_dead_and_is_to_be_looked_at(seen):
    """No OOM killer ended it."""
    death = {**DEATH, "node": "b@vm", "host": "vm", "pid": 9, "recovered": 1}
    for reason, fix in (
        (Reason.HUNG, "py-spy dump --pid 9"),
        (Reason.SILENT, "still runs there (pid 9, "),
    ):
        seen["deaths"] = [{**death, "reason": reason.value}]
        found = only(seen)
        assert found.text.startswith("worker b@vm was declared dead 90 s ago")
        assert fix in found.fix
        assert "OOM" not in found.fix


OWNER = {
    "hung-owner": ({"state": "hung", "verdict": "dead"}, "critical", "py-spy dump --pid 7"),
    "silent-owner": (
        {"state": "silent", "heartbeat_age": 20.0},
        "warning",
        "no heartbeat for 20 s",
    ),
    "silent-owner of another host": (
        {"state": "silent", "heartbeat_age": 20.0, "owner_ttl": 60.0},
        "warning",
        "within about 55 s (owner_ttl=60 s); if none runs, `celery -A shop superfetch reap "
        "--wait 75` does so within as many seconds",
    ),
    "silent-owner for longer than its ttl": (
        {"state": "silent", "heartbeat_age": 130.0},
        "critical",
        "2 min",
    ),
}


@pytest.mark.parametrize("case", OWNER)
def test_owners(seen, case):
    changes, level, said = OWNER[case]
    seen["owners"].append({**seen["owners"][0], "host": "vm2", **changes})
    found = only(seen)
    assert (found.level, found.code) == (level, case.split()[0])
    assert said in str(found)


def test_a_process_that_goes_on_under_another_name_is_not_to_be_killed(seen):
    seen["owners"].append({**seen["owners"][0], "state": "silent", "heartbeat_age": 20.0})
    assert only(seen).code == "silent-owner", "hosts may share their name, and processes a pid"
    seen["owners"][1]["version"] = ""
    found = only(seen)
    assert (found.level, found.code) == ("note", "former-owner"), "it has no record"
    assert "kill" not in str(found)
    seen["owners"][1] |= {"version": "0.1.0", "owner": "vm|7|former", "successor": "vm|7|aa"}
    assert only(seen).code == "former-owner"
    assert "kill" not in str(only(seen))
    seen["owners"][0]["state"] = "silent"
    assert [found.code for found in findings(seen)] == ["silent-owner"] * 2, "it may be frozen"


def test_what_a_stopping_worker_waits_for_and_for_how_long(seen):
    stopping = {"state": "stopping", "stopping_for": 60.0, "running": 1, "longest_run": 90.0}
    seen["owners"].append({**seen["owners"][0], **stopping})
    assert only(seen).level == "note"
    seen["owners"][1]["stopping_for"] = STOPPING_LONG_S
    found = only(seen)
    assert (found.level, found.code) == ("warning", "stopping-owner")
    assert "stopping for 5 min and waits for 1 running job, which has run for 90 s" in str(found)
    assert "SIGQUIT" in found.fix
    pid = seen["owners"][1]["pid"]
    assert f"py-spy dump --subprocesses --pid {pid}" in found.fix, "a pool process runs the job"
    seen["owners"][1]["running"] = 0
    assert f"py-spy dump --subprocesses --pid {pid}" in only(seen).fix


def test_lost_jobs_are_a_warning_for_an_hour(seen):
    since, at = "2026-01-02T02:40:00.000+00:00", "2026-01-02T02:58:00.000+00:00"
    seen["lost"] = {"jobs": 3, "since": since, "at": at, "ever": 500}
    found = only(seen)
    assert (found.level, found.code) == ("warning", "lost-jobs")
    assert "lost 3 jobs" in found.text, "and not the 500 of all times"
    assert found.text.endswith("the first found 20 min ago and the last 2 min ago")
    seen["lost"] = {"jobs": 1, "since": at, "at": at, "ever": 500}
    assert only(seen).text.endswith(
        "lost 1 job that workers had claimed and not started, found 2 min ago"
    )
    seen["lost"]["at"] = "2026-01-02T01:58:00.000+00:00"
    assert not findings(seen)


@pytest.mark.parametrize(("keys", "level"), [([False], "warning"), ([False, True], "critical")])
def test_keys_of_another_type_are_named(seen, keys, level):
    seen["wrong_keys"] = [
        {"key": f"superfetch:k{n}", "must_be": "zset", "held": "string", "needed": needed}
        for n, needed in enumerate(keys)
    ]
    assert only(seen)[:2] == (level, "key-type")
    assert "superfetch:k0 (a string, must be a zset)" in only(seen).text
    assert ("workers cannot use them" in only(seen).text) == (level == "critical")


QUEUE = {
    "queue-type": ({"length": None, "error": "WRONGTYPE"}, "WRONGTYPE"),
    "no-consumer": (
        {"length": 0, "parked": 3, "overdue": 60.0, "consumers": 0},
        "3 scheduled jobs, the next due 60 s ago, no worker consumes it",
    ),
    "probation-unserved": ({"length": 0, "probation": 2, "consumers": 0}, "2 jobs on probation"),
}


@pytest.mark.parametrize("code", QUEUE)
def test_queues(seen, code):
    changes, said = QUEUE[code]
    seen["queues"] = [{**seen["queues"][0], **changes}]
    assert only(seen)[:2] == ("critical", code)
    assert said in only(seen).text


@pytest.mark.parametrize("row", [{"overdue": 2.0, "consumers": 0}, {"overdue": 60.0}])
def test_scheduled_jobs_wait_for_their_time_and_for_a_worker_that_is_there(seen, row):
    seen["queues"] = [{**seen["queues"][0], "length": 0, "parked": 3, **row}]
    assert not findings(seen)


@pytest.mark.parametrize("last", [None, {"age": 61.0}])
def test_nobody_makes_passes(seen, last):
    seen["last_pass"] = last
    assert only(seen)[:2] == ("warning" if last else "critical", "no-pass")
    assert only(seen).fix.startswith(
        "a running worker makes one within 10 s; if none comes, check its log"
    )
    seen["owners"][0]["state"] = "silent"
    found = next(one for one in findings(seen) if one.code == "no-pass")
    assert found.level == "critical"
    assert found.fix.startswith("start a worker")
    seen["owners"][0]["state"] = "running"
    seen["owners"][0]["age"] = 59.0
    assert findings(seen) == [], "none was due yet"
    seen["owners"].append({**seen["owners"][0], "age": 61.0})
    assert only(seen).code == "no-pass", "the oldest has seen none"
    seen["owners"] = []
    assert only({**seen, "queues": []}).code == "no-worker"


SERVER = {
    "eviction": ({"eviction_policy": "allkeys-lru"}, "critical"),
    "eviction without a limit": ({"eviction_policy": "allkeys-lru", "maxmemory": 0}, "warning"),
    "eviction of what expires": ({"eviction_policy": "volatile-lru"}, "warning"),
    "memory": ({"used_memory": 85 * MIB}, "warning"),
    "memory, nearly all": ({"used_memory": 96 * MIB}, "critical"),
    "no-persistence": ({"append_only": False}, "warning"),
    "connections": ({"connections": 8_000}, "warning"),
    "connections, nearly all": ({"connections": 9_500}, "critical"),
    "aof-failed": ({"append_ok": False}, "critical"),
    "save-failed": ({"last_save_ok": False}, "critical"),
    "slow-detection": ({"reports_connections": False}, "note"),
    "replica-lag": ({"replica_lag_bytes": 100 * MIB}, "warning"),
}


@pytest.mark.parametrize("case", SERVER)
def test_the_server(seen, case):
    changes, level = SERVER[case]
    seen["server"].update(changes)
    found = only(seen)
    assert (found.level, found.code) == (level, case.replace(",", "").split()[0])
    assert found.fix


def test_a_server_that_saves_or_may_not_be_asked_is_not_blamed(seen):
    for saves in ("3600 1", None):
        seen["server"].update(append_only=False, saves=saves)
        assert findings(seen) == []
    seen["server"] = dict.fromkeys(seen["server"], None)
    seen["server"].update(
        last_save_ok=True, append_ok=True, replica_lag_bytes=0, reports_connections=True
    )
    assert findings(seen) == []


def test_the_dead_set_is_near_its_limit(seen):
    seen["dead_set"]["of_app"] = 8_000
    assert "beyond that" in only(seen).text
    seen["dead_set"]["of_app"] = 10_000
    assert "each further one" in only(seen).text
    assert only(seen)[:2] == ("warning", "dead-set-full")


@pytest.mark.parametrize("kind", ["never_ran", "junk"])
def test_a_flood_of_what_never_ran_names_its_task_or_reason(seen, kind):
    row = seen["dead_set"]["caps"][kind]
    row.update(jobs=row["most_jobs"], flood={"task": "no\nbody"})
    found = only(seen)
    assert found[:2] == ("warning", "dead-set-flooded")
    assert "most of the newest have the task 'no body'" in found.text
    assert "dead list --task 'no body'`" in found.fix
    row.update(flood={"reason": "unparseable payload"})
    assert "have the reason 'unparseable payload'" in only(seen).text
    row.update(flood={})
    assert only(seen).fix.startswith("`celery -A shop superfetch dead list` lists them")


def test_a_job_that_was_killed_lately_is_told_of(seen):
    job = {"id": "0f22", "task": "shop.charge", "task_id": "4e1a", "reason": "gone"}
    seen["dead_set"].update(killed_lately=1, newest={**job, "at": "2026-01-02T02:59:43.000+00:00"})
    found = only(seen)
    assert found[:2] == ("note", "job-killed")
    assert found.text == "job shop.charge[4e1a] was moved to the dead set 17 s ago (gone)"
    assert found.fix.startswith("`celery -A shop superfetch dead show 0f22` says why")
    assert verdict([found], seen).endswith(", 3 in the dead set (1 within the hour).")
    seen["dead_set"]["killed_lately"] = 3
    assert only(seen).text.endswith(", and 2 more within the hour")
    seen["dead_set"]["killed_lately"] = DEAD_LETTERED_MANY - 1
    assert only(seen).level == "note"
    seen["dead_set"]["killed_lately"] = DEAD_LETTERED_MANY
    assert only(seen)[:2] == ("warning", "job-killed"), "so many are no longer one poison pill"
    seen["dead_set"]["newest"]["task"] = "x" * 5_000
    assert only(seen).text.startswith(f"job {'x' * 77}...[4e1a] was moved to the dead set")


def test_what_the_server_evicted_may_be_jobs(seen):
    seen["server"].update(evicted_keys=12, uptime_s=7200)
    assert only(seen)[:2] == ("critical", "evicted")
    assert only(seen).text == (
        "the server evicted 12 keys since its start 2 h ago, perhaps with jobs"
    )
    seen["server"]["eviction_policy"] = "volatile-lru"
    found = {one.code: one for one in findings(seen)}
    assert found["evicted"].level == "note", "it evicts only what expires, and jobs do not"


def test_a_server_that_forgot_its_workers_may_have_lost_jobs(seen):
    """Those that waited on queues: no worker can name them."""
    seen["data_lost"] = "2026-01-02T02:58:30.000+00:00"
    assert only(seen)[:2] == ("warning", "data-lost")
    assert "found 90 s ago" in only(seen).text
    seen["data_lost"] = "2026-01-02T01:58:30.000+00:00"
    assert findings(seen) == []


def test_a_restart_without_an_aof_loses_what_came_after_the_last_save(seen):
    seen["server"].update(uptime_s=90, append_only=False, saves="3600 1")
    assert only(seen)[:2] == ("warning", "restarted")


def test_a_server_that_restarted_under_its_workers_is_a_note(seen):
    seen["server"]["uptime_s"] = 90
    assert only(seen)[:2] == ("note", "restarted")
    assert only(seen).text == "the server restarted 90 s ago, while 1 worker ran"
    seen["owners"][0]["age"] = 60.0
    assert findings(seen) == [], "it came after that"


def beat(pid: int, at: str, **more: Any) -> dict[str, Any]:
    """One that ticked last then; it is 03:00 now."""
    row = {"app": "shop", "host": "web-1", "pid": pid, "interval": 10.0}
    return {**row, "at": f"2026-01-02T{at}.000+00:00", **more}


def test_a_beat_that_stands_still(seen):
    seen["beats"] = [beat(7, "02:59:01")]
    assert findings(seen) == []
    seen["beats"] = [beat(7, "02:58:59")]
    found = only(seen)
    assert found[:2] == ("warning", "beat-silent")
    assert found.text.startswith("beat of app shop on web-1 (pid 7) has not ticked for 61 s")
    seen["beats"] = [beat(7, "02:58:59", interval=60.0)]
    assert findings(seen) == [], "its entry is due more rarely"
    seen["beats"] = [beat(7, "02:59:59"), beat(9, "02:50:00", app="other")]
    assert "app other on web-1 (pid 9) has not ticked for 10 min" in only(seen).text


def test_stock_workers(seen):
    seen["unacked"] = 1
    assert only(seen)[:2] == ("warning", "unacked")
    assert "1 job unacked" in only(seen).text


def test_durations():
    said = {0: "0 s", 0.47: "0.4 s", 5: "5 s", 119: "119 s", 899: "14 min", 7200: "2 h"}
    said |= {40 * 3600: "40 h", 3 * 86400: "3 d"}
    assert {seconds: span(seconds) for seconds in said} == said


@pytest.mark.parametrize(
    ("age", "level", "since"),
    [
        (30.0, "note", " for 30 s"),
        (3599.0, "note", " for 59 min"),
        (3600.0, "warning", " for 60 min"),
    ],
)
def test_a_pause_is_a_note_and_after_an_hour_a_warning(seen, age, level, since):
    seen["queues"] = [row := seen["queues"][0]]
    row.update(queue="a b", length=3, probation=1, paused={"at": "t", "age": age, "by": "ann"})
    [found] = [finding for finding in findings(seen) if finding.code == "queue-paused"]
    assert found.level == level
    assert found.text == f"queue a b has been paused{since} by ann, 4 jobs wait"
    assert found.fix == "when its jobs may run, `celery -A shop superfetch queue resume 'a b'`"
    assert not [finding for finding in findings(seen) if finding.code == "no-consumer"]


def test_a_pause_that_was_written_by_hand_is_a_warning(seen):
    seen["queues"][0].update(queue="note", length=1, paused={"at": None, "age": None, "by": None})
    [found] = [finding for finding in findings(seen) if finding.code == "queue-paused"]
    assert found.level == "warning"
    assert found.text == "queue note has been paused, 1 job waits"


@pytest.mark.parametrize(
    ("ages", "since"),
    [((299.0, 300.0), None), ((300.0, 400.0), "5 min"), ((None, 400.0), None)],
)
def test_a_queue_that_does_not_move_is_a_warning(seen, ages, since):
    """Of each of its lists, no job was claimed for five minutes."""
    for row, age in zip(seen["queues"], ages, strict=True):
        row.update(oldest=age)
    found = [finding for finding in findings(seen) if finding.code == "queue-stalled"]
    assert len(found) == bool(since)
    if since:
        text = f"queue mail does not move: 40 jobs, 1 worker, and none has been claimed for {since}"
        assert (found[0].level, found[0].text) == ("warning", text)
        assert "jobs --queue mail --state running" in found[0].fix
    seen["queues"][0].update(paused={"at": "t", "age": 1.0, "by": "ann"})
    assert "queue-stalled" not in {finding.code for finding in findings(seen)}
