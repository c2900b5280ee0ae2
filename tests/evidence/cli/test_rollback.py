"""`celery superfetch rollback`: all jobs are requeued in order, and stock kombu runs them."""

from __future__ import annotations

import re
import signal
from time import sleep
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from celery_superfetch.cli.session import Session
from celery_superfetch.cli.stock import _patiently
from celery_superfetch.errors import StillInUse
from celery_superfetch.migration.to_stock import Rollback
from celery_superfetch.model.job import Job
from celery_superfetch.reaper.drain import DRAIN_BATCH
from celery_superfetch.store.parked_jobs import ParkedJobs
from celery_superfetch.store.redis.clients import run_id
from support.process import Process
from support.waiting import eventually
from support.workers.bench import Bench, elsewhere, payload
from support.workers.cli import kill_in_the_middle, superfetch_command
from support.workers.inbox import Inbox, publish, stock
from support.workers.worker import process_env


def jobs(*names: object, queue: str = "mail") -> list[bytes]:
    return [payload(name, queue) for name in names]


def dump(client: redis.Redis) -> dict[bytes, Any]:
    return {key: client.dump(key) for key in client.scan_iter()}


def rollback(bench: Bench) -> Rollback:
    return Rollback(bench.reaper())


@pytest.mark.parametrize("prefix", ["", "shop-a:"])
def test_all_comes_back_in_order_uncounted_and_stock_runs_it(url, client, make_bench, prefix):
    bench = make_bench(global_keyprefix=prefix)
    step = "mail\x06\x163"
    many = jobs(*range(150))
    one = bench.dead_owner(many, lists=["mail", step])
    bench.give(one.owner, step, jobs("p1", "p2"))
    bench.land(one, "mail", *jobs("landed"))
    gone = bench.dead_owner(jobs("t1", "t2", queue="aside"), "aside", lists=["aside"])
    bench.push("mail", *jobs("waiting"))
    # Reaped before, and its jobs landed late.
    assert bench.mark(gone)
    # Its bookkeeping is lost; only the private list is left.
    bench.give("lost|1|abc", "mail", jobs("x"))

    # An owner that nobody knows could live: it is only registered.
    with pytest.raises(StillInUse, match=r"lost\|1\|abc"):
        rollback(bench).run()
    assert len(bench.private(one)) == 150
    report = rollback(bench).run(force=True)
    assert (report.requeued, report.errors, report.in_flight) == (156, 0, 0)
    assert report.queues == {"mail": 152, step: 2, "aside": 2}
    assert set(report.owners) == {one.owner, "lost|1|abc"}
    back = bench.queue("mail")
    assert [raw for raw in back if raw != payload("x", "mail")] == [
        *many,
        *jobs("landed", "waiting"),
    ]
    assert bench.queue(step) == jobs("p1", "p2")
    assert bench.queue("aside") == jobs("t1", "t2", queue="aside")
    assert bench.counters(many[0]).recoveries == 0
    assert bench.stat("recovered") == 0
    assert bench.stat("requeued") == 155

    with stock(url, "mail", "aside", global_keyprefix=prefix) as inbox:
        eventually(lambda: inbox.turn() or len(inbox.messages) == 157, every=0.0)
        inbox.ack_all()
    assert not client.exists(f"{prefix}unacked")


def test_a_living_owner_is_in_the_way_and_a_forced_one_claims_no_more(bench):
    alive = bench.owner()
    far = bench.owner(elsewhere("web7"))
    bench.give(alive.owner, "mail", jobs("a"))
    bench.land(alive, "mail", *jobs("b"))
    dead = bench.dead_owner(jobs("c"))
    before = dump(bench.client)
    with pytest.raises(StillInUse) as refused:
        rollback(bench).run()
    assert f"{alive.owner}: 2 jobs in flight" in str(refused.value)
    assert f"kill -TERM {alive.process.pid}" in str(refused.value)
    assert "pid 1 on web7; if it is gone" in str(refused.value)
    assert dead.owner not in str(refused.value)
    dry = rollback(bench).run(dry_run=True)
    assert (dry.requeued, dry.in_flight, len(dry.alive)) == (1, 3, 2)
    assert dump(bench.client) == before

    report = rollback(bench).run(force=True)
    assert (report.requeued, {one["owner"] for one in report.alive}) == (
        3,
        {alive.owner, far.owner},
    )
    assert bench.private(alive) == bench.landed(alive) == []
    assert bench.claim(alive).registered is False


def test_a_list_that_cannot_be_given_back_keeps_its_jobs(bench, caplog):
    bench.client.set("taken", "by something else")
    owner = bench.dead_owner(jobs("a", "b"), "taken", lists=["taken", "mail"])
    bench.give(owner.owner, "mail", jobs("c"))
    report = rollback(bench).run()
    assert (report.requeued, report.errors, report.in_flight) == (1, 1, 2)
    assert caplog.messages[-1].startswith(
        f"Rollback: no action on private list (owner={owner.owner}, queue=taken): "
    )
    assert caplog.messages[-1].endswith(
        "Nothing was lost; fix the error, and run the rollback again."
    )
    assert len(bench.private(owner, "taken")) == 2
    bench.client.delete("taken")
    assert rollback(bench).run().requeued == 2


def test_jobs_of_an_owner_elsewhere_are_requeued_once_its_silence_is_known(make_bench):
    bench = make_bench(heartbeat_interval=0.2, owner_ttl=0.4)
    far = bench.owner(elsewhere("web7"))
    bench.give(far.owner, "mail", jobs("a"))
    patient = rollback(bench)
    with pytest.raises(StillInUse, match="1 job in flight"):
        patient.run()
    report = eventually(patient.run, every=0.1)
    assert report.owners == {far.owner: "no heartbeat for its owner_ttl"}
    assert bench.queue() == jobs("a")


def test_a_kill_in_the_middle_loses_nothing_and_keeps_the_order(bench, env, tmp_path):
    many = jobs(*range(10_000))
    owner = bench.dead_owner()

    def hold() -> None:
        bench.client.delete("mail")
        bench.give(owner.owner, "mail", many)

    kill_in_the_middle(
        "rollback",
        env=env(),
        directory=tmp_path,
        prepare=hold,
        begun=lambda: bench.client.llen("mail"),
        ended=lambda: not bench.private(owner),
    )
    back = bench.queue()
    assert 0 < len(back) < len(many)
    assert bench.private(owner)[::-1] + back == many

    assert rollback(bench).run().requeued == len(many) - len(back)
    assert bench.queue() == many


def test_the_command_refuses_and_keeps_the_dead(url, client, bench, cli):
    publish(url, "celery", "first", "second")
    before = client.lrange("celery", 0, -1)
    inbox = Inbox(url, "celery")
    inbox.receive(2)
    # The server has none of its connections any more: nothing of it can still land.
    killed = bench.dead_owner(jobs("poison"), run_id=run_id(client), connections=(10**9,))
    [job] = bench.held(killed)
    recovery = bench.recovery(job, reason="poison")
    assert bench.run(bench.dead_set.kill_call(recovery, marked=False, notice=b""))[0] == b"ok"

    refused = cli("rollback", "--json", code=1)
    assert "2 jobs in flight" in refused.err
    waited = cli("rollback", "--wait", "2", code=1).err
    assert "Waiting for them, at most 2 s ..." in waited, "else it looks as if it hung"
    assert waited.count("2 jobs in flight") == 2, "at the beginning, and at the end"
    inbox.close()
    done = cli("rollback")
    assert "Requeued 0 jobs." in done.out
    assert "The dead set keeps its 1 job:" in done.out
    assert client.lrange("celery", 0, -1) == before
    again = cli("rollback", "--json").json()
    assert (again["requeued"], again["dead_set"], again["in_flight"]) == (0, 1, 0)


def test_a_dry_run_says_where_the_jobs_are_that_it_would_give_back(bench, cli):
    owner = bench.dead_owner(jobs("later", "much later", "reserved"))
    parked = dict.fromkeys(bench.held(owner)[:2], 4 * 10**12)
    bench.run(ParkedJobs(bench.database).park(parked))
    bench.client.lpush(bench.keys.probation("mail"), *jobs("suspect"))
    bench.client.sadd(bench.keys.on_probation, "mail")
    said = cli("rollback", "--dry-run").out
    for line in (
        "Would requeue 4 jobs: mail 4.",
        "1 job is still in flight.",
        "2 jobs are still scheduled.",
        "1 job is still on probation.",
    ):
        assert line in said
    report = cli("rollback", "--dry-run", "--json").json()
    assert [report[name] for name in ("in_flight", "parked", "probation")] == [1, 2, 1]
    done = cli("rollback", "--json").json()
    assert [done[name] for name in ("requeued", "in_flight", "parked", "probation")] == [
        4,
        0,
        0,
        0,
    ]


def test_what_a_dry_run_says_of_many_workers_and_queues_is_bounded(bench, cli):
    """It was a line of 20 kB, after 201 warnings."""
    for number in range(60):
        name = f"queue-{number}"
        owner = bench.owner(elsewhere(f"web-{number}"), lists=[name])
        bench.give(owner.owner, name, jobs(*range(1 + number % 3), queue=name))
    said = cli("rollback", "--dry-run")
    assert "Warning: 40 more workers must be stopped: --json lists all" in said.err
    assert said.err.count("): stop it") == 20
    lines = said.out.splitlines()
    assert max(map(len, lines)) < 400
    assert lines[0] == "Would requeue 0 jobs."
    forced = cli("rollback", "--dry-run", "--force")
    [line] = [line for line in forced.out.splitlines() if "requeue" in line]
    assert line.startswith("Would requeue 120 jobs: ")
    assert line.endswith("and 90 on 50 other queue lists (--json lists all).")
    assert "and 40 more workers: --json lists all." in forced.out
    assert len(cli("rollback", "--dry-run", "--json").json()["alive"]) == 60
    refused = cli("rollback", code=1).err
    assert refused.count(" in flight, last heartbeat") == 20
    assert "and 40 more workers: `rollback --dry-run --json` lists all" in refused


def test_a_forced_rollback_says_how_far_it_is_and_ctrl_c_says_how_far_it_came(
    bench, env, cli, tmp_path, keep
):
    """All comes back, once, by the next one."""
    owner, many = bench.owner(elsewhere(), lists=["mail"]), 30_000
    bench.give(owner.owner, "mail", jobs(*range(many)))
    log = tmp_path / "rollback.log"
    command = superfetch_command("rollback", "--force")
    process = keep(Process(command, log=log, env=process_env(env())))
    eventually(lambda: "Requeued" in process.log(), every=0.001)
    process.signal(signal.SIGINT)
    assert process.wait_exit() == 130
    [said] = re.findall(r"Interrupted: (\d+) jobs requeued\.", process.log())
    assert 0 < len(bench.queue()) - int(said) <= DRAIN_BATCH or len(bench.queue()) == int(said)
    assert int(said) < many
    rest = cli("rollback", "--force")
    assert "Requeued" in rest.err
    assert sorted(bench.queue()) == sorted(jobs(*range(many)))


def test_the_former_name_drain_works_and_is_not_in_the_help(bench, cli):
    bench.dead_owner(jobs("a"))
    assert cli("drain", "--json").json()["requeued"] == 1
    assert bench.queue() == jobs("a")
    names = re.findall(r"^  ([a-z]+)", cli("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert "rollback" in names
    assert "drain" not in names
    assert cli("rollback", "--help").out.split()[:3] == cli("drain", "--help").out.split()[:3]


def suspect(bench: Bench, raw: bytes) -> None:
    """Let a job's history say that it waits to run alone."""
    bench.lists.mark_suspect(Job("", "mail", raw))
    bench.client.set(bench.keys.has_history, 1)


def test_a_scheduled_suspect_is_requeued_and_not_left_on_probation(bench, cli):
    """It was, and the command ended with 1 although nothing was wrong."""
    owner = bench.dead_owner(jobs("later", "suspect"))
    bench.run(ParkedJobs(bench.database).park(dict.fromkeys(bench.held(owner), 4 * 10**12)))
    suspect(bench, *jobs("suspect"))
    done = cli("rollback", "--json").json()
    assert [done[name] for name in ("requeued", "parked", "probation", "errors")] == [2, 0, 0, 0]
    assert done["queues"] == {"mail": 2}
    assert sorted(bench.queue()) == sorted(jobs("later", "suspect"))


def test_a_suspect_in_flight_is_counted_once(bench):
    """It went on probation, and from there to its queue: 2 jobs for one."""
    owner = bench.dead_owner(jobs("first", "suspect", "last"))
    suspect(bench, *jobs("suspect"))
    bench.client.lpush(bench.keys.probation("mail"), *jobs("waits"))
    bench.client.sadd(bench.keys.on_probation, "mail")
    attempt = rollback(bench)
    report = attempt.run()
    assert (report.requeued, report.queues, attempt.moved) == (4, {"mail": 4}, 4)
    assert (report.in_flight, report.probation) == (0, 0)
    assert bench.queue() == jobs("waits", "first", "suspect", "last")
    assert bench.private(owner.owner) == bench.on_probation() == []


def test_what_beat_releases_meanwhile_is_not_left_on_probation(bench):
    """Jobs come due between the steps, and beat's process releases them."""
    owner = bench.dead_owner(jobs("later"))
    bench.run(ParkedJobs(bench.database).park(dict.fromkeys(bench.held(owner), 4 * 10**12)))

    def beat(_: int) -> None:
        if not bench.client.exists("done"):
            bench.client.set("done", 1)
            bench.client.lpush(bench.keys.probation("mail"), *jobs("suspect"))
            bench.client.sadd(bench.keys.on_probation, "mail")

    report = Rollback(bench.reaper(), beat).run()
    assert (report.requeued, report.parked, report.probation) == (2, 0, 0)
    assert bench.queue() == jobs("suspect", "later")


def test_a_second_run_ends_what_was_left_between_the_steps(bench, monkeypatch):
    owner = bench.dead_owner(jobs("later", "suspect"))
    bench.run(ParkedJobs(bench.database).park(dict.fromkeys(bench.held(owner), 4 * 10**12)))
    suspect(bench, *jobs("suspect"))
    bench.client.lpush(bench.keys.probation("mail"), *jobs("waits"))
    bench.client.sadd(bench.keys.on_probation, "mail")
    attempt = rollback(bench)
    monkeypatch.setattr(attempt, "_end_probation", lambda _: bench.client.no_such_command())
    report = attempt.run()
    assert (report.requeued, report.errors, report.probation) == (2, 1, 1)
    again = rollback(bench).run()
    assert (again.requeued, again.errors, again.probation) == (1, 0, 0)
    assert sorted(bench.queue()) == sorted(jobs("waits", "later", "suspect"))


def test_the_command_finds_a_dead_worker_elsewhere_also_with_quick_heartbeats(make_bench, cli):
    """It looked once a second. With a heartbeat more often than that the watch began again at
    each look, and no wait was long enough."""
    quick = {"heartbeat_interval": 0.4, "owner_ttl": 1}
    bench = make_bench(**quick)
    far = bench.owner(elsewhere("web7"))
    bench.give(far.owner, "mail", jobs("a"))
    done = cli("rollback", "--wait", 20, "--json", options=quick).json()
    assert (done["requeued"], [*done["owners"]]) == (1, [far.owner])
    assert bench.queue() == jobs("a")


def test_unknown_owners_are_looked_for_before_the_watch_and_not_during_it(own):
    """SCAN of a large database takes longer than the watch allows between two looks."""
    bench = Bench(own, heartbeat_interval=0.2, owner_ttl=0.4)
    bench.give("lost|1|abc", "mail", jobs("a"))

    def scans() -> int:
        return cast("int", own.info("commandstats").get("cmdstat_scan", {}).get("calls", 0))

    patient = rollback(bench)
    with pytest.raises(StillInUse, match=r"lost\|1\|abc"):
        patient.run()
    first = scans()
    assert first, "the control: it is looked for"
    with pytest.raises(StillInUse):
        patient.run()
    assert scans() == first
    assert eventually(patient.run, every=0.1).requeued == 1


def test_where_scan_is_forbidden_the_looks_together_log_that_once(own, caplog):
    """Each look of a long wait logged the same error. The rollback still ends with an error: the
    count of what is left needs SCAN, too."""
    bench = Bench(own, heartbeat_interval=0.2, owner_ttl=0.4)
    bench.give(bench.owner(elsewhere("web7")).owner, "mail", jobs("a"))
    own.execute_command("ACL", "SETUSER", "default", "-scan")
    patient = rollback(bench)
    for _ in range(2):
        with pytest.raises(StillInUse, match="web7"):
            patient.run()
    assert caplog.text.count("workers that are not registered") == 1
    report = eventually(patient.run, every=0.1)
    assert (report.requeued, report.errors) == (1, 1)
    assert caplog.text.count("workers that are not registered") == 1


def test_the_wait_begins_after_the_first_try():
    """The first try may last as long as the wait: the message that names the seconds to wait would
    name too few."""
    tries: list[int] = []

    def run() -> str:
        tries.append(1)
        if len(tries) == 1:
            sleep(0.5)
        if len(tries) < 3:
            raise StillInUse("a worker lives")
        return "done"

    session = cast("Session", SimpleNamespace(as_json=True))
    assert _patiently(session, 0.3, run, 0.1) == "done"
    tries.clear()
    with pytest.raises(StillInUse):
        _patiently(session, 0.0, run, 0.1)
    assert len(tries) == 1, "the control: without a wait there is one try"


def test_a_table_of_beat_is_not_looked_for_where_django_has_no_settings(cli):
    """kombu loads Django wherever it is installed, and the rollback warned of its settings."""
    pytest.importorskip("django", reason="Django is not installed")
    assert "django" not in cli("rollback").err


@pytest.mark.parametrize("place", ["in flight", "landed", "on probation", "scheduled"])
def test_a_queue_that_cannot_take_its_jobs_keeps_no_others_back(bench, place):
    """`a` is a key of another program, and comes first."""
    bench.client.set("a", "by something else")
    lists = dict.fromkeys(("a", "mail"), 0)
    owner = bench.dead_owner(lists=lists)
    for name in lists:
        theirs = jobs(name, queue=name)
        if place == "landed":
            bench.land(owner, name, *theirs)
        elif place == "on probation":
            bench.client.lpush(bench.keys.probation(name), *theirs)
            bench.client.sadd(bench.keys.on_probation, name)
        else:
            given = bench.give(owner.owner, name, theirs)
            if place == "scheduled":
                bench.run(ParkedJobs(bench.database).park(dict.fromkeys(given, 4 * 10**12)))
    if place == "in flight":  # the newest comes first
        bench.give(owner.owner, "a", jobs("newest", queue="a"))
    report = rollback(bench).run()
    assert (report.requeued, report.queues["mail"]) == (1, 1)
    assert bench.queue() == jobs("mail")
    assert report.in_flight + report.probation + report.parked == 1 + (place == "in flight")
    bench.client.delete("a")
    left = rollback(bench).run()
    assert (left.errors, left.in_flight + left.probation + left.parked) == (0, 0)
    assert jobs("a", queue="a")[0] in bench.queue("a")


def test_a_key_of_another_type_keeps_no_scheduled_jobs_back(bench):
    owner = bench.dead_owner(jobs("later"))
    bench.run(ParkedJobs(bench.database).park(dict.fromkeys(bench.held(owner), 4 * 10**12)))
    bench.client.set(bench.keys.parked_of("a"), "by something else")
    bench.client.zadd(bench.keys.parked, {"a": 1})
    dry = rollback(bench).run(dry_run=True)
    assert (dry.queues, dry.errors) == ({"mail": 1}, 0), "it counted no scheduled job of any queue"
    report = rollback(bench).run()
    assert (report.requeued, report.errors, report.parked) == (1, 0, 0)
    assert bench.queue() == jobs("later")
