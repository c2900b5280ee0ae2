"""`jobs kill`: an operator takes jobs from real workers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_superfetch import PoisonPill
from celery_superfetch.store.wire.scripts import source
from support.servers.faults import script
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.waiting import eventually
from support.workers.cli import superfetch_command
from support.workers.worker import process_env

#: No pass and no heartbeat helps.
ALONE = {"reap_interval": 3600}
POOLS = ["prefork", "threads", "gevent"]


@pytest.fixture
def busy(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, cli: Any
) -> Callable[..., SimpleNamespace]:
    """`busy(pool)`: a worker that runs one job, and has reserved two others of four it may have."""

    def make(pool: str, **settings: Any) -> SimpleNamespace:
        conf = {"worker_prefetch_multiplier": 4, **settings.pop("conf", {})}
        runs = shop.hold.delay("runs")
        first, second = shop.note.delay("first"), shop.note.delay("second")
        one = worker(pool=pool, options=ALONE, concurrency=1, conf=conf, **settings)
        eventually(lambda: ledger.starts().get("runs"))
        expected = {runs.id: "running", first.id: "reserved", second.id: "reserved"}
        eventually(lambda: states(cli) == expected, every=0.1)
        return SimpleNamespace(worker=one, runs=runs, first=first, second=second)

    return make


def states(cli: Any) -> dict[str, str]:
    return {job["id"]: job["state"] for job in cli("jobs", "--json").json()["jobs"]}


def test_what_is_not_meant_is_refused_with_what_to_do(busy, cli, shop, db):
    here = busy("prefork")
    begin = here.runs.id[:8]
    later = shop.note.apply_async(("later",), countdown=3600, task_id=f"{begin}-later")
    eventually(lambda: states(cli).get(later.id) == "parked", every=0.1)
    assert "revoke it" in cli("jobs", "kill", "--yes", later.id, code=1).err
    assert "no such job" in cli("jobs", "kill", "--yes", "nonsense", code=1).err
    assert "fits 2 jobs" in cli("jobs", "kill", "--yes", begin, code=1).err
    assert "and end what runs" in cli("jobs", "kill", here.runs.id, code=1).err
    assert sorted(states(cli).values()) == ["parked", "reserved", "reserved", "running"]
    assert not db.dead()


@pytest.mark.parametrize("pool", POOLS)
def test_a_killed_job_is_in_the_dead_set_and_does_not_run(busy, cli, make_app, ledger, db, pool):
    here = busy(pool)
    assert "Aborted" in cli("jobs", "kill", here.first.id, code=1).err
    told = cli("jobs", "kill", "--yes", "--json", here.first.id, here.second.id).json()
    assert {job["id"] for job in told["killed"]} == {here.first.id, here.second.id}
    assert {dead["reason"] for dead in db.dead()} == {"killed by an operator"}
    found = states(cli)  # with their notices, which wait for a slot
    assert found.pop(here.runs.id) == "running"
    assert {*found.values()} == {"reserved"}
    assert found.keys().isdisjoint({here.first.id, here.second.id})
    # The same bytes come back to the worker in whose line the empty request still is.
    cli("dead", "retry", here.first.id)
    ledger.release()
    eventually(lambda: {"runs", "first"} <= set(ledger.finishes()))
    with pytest.raises(PoisonPill, match="killed by an operator"):
        here.second.get(timeout=20)
    assert ledger.runs() == {"runs": 1, "first": 1}
    eventually(lambda: not db.private_lists())
    assert make_app().AsyncResult(here.first.id).get(timeout=20) == "first"


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_run_is_ended_and_its_place_is_free(busy, cli, make_app, ledger, db, pool):
    here = busy(pool)
    cli("jobs", "kill", "--yes", here.runs.id)
    eventually(lambda: {"first", "second"} <= set(ledger.finishes()))
    with pytest.raises(PoisonPill, match="killed by an operator"):
        here.runs.get(timeout=20)
    assert [dead["task_id"] for dead in db.dead()] == [here.runs.id]
    eventually(lambda: not db.held())
    assert ledger.runs() == {"runs": 1, "first": 1, "second": 1}
    assert not ledger.finishes().get("runs")
    assert here.runs.state == "FAILURE"
    # No worker keeps it as revoked, or it could not be put back.
    cli("dead", "retry", here.runs.id)
    ledger.release()
    eventually(lambda: ledger.finishes().get("runs"))
    assert make_app().AsyncResult(here.runs.id).get(timeout=20) == "runs"


def test_the_control_what_celery_has_revoked_is_not_run_again(busy, cli, make_app, ledger, db):
    """A worker keeps the ids that were revoked, and tells them to those that start."""
    here = busy("prefork")
    make_app().control.revoke(here.runs.id)
    cli("jobs", "kill", "--yes", here.runs.id)
    cli("dead", "retry", here.runs.id)
    ledger.release()
    eventually(lambda: not db.waiting() and not db.held())
    assert ledger.runs()["runs"] == 1
    assert make_app().AsyncResult(here.runs.id).state == "REVOKED"


def test_a_job_that_ends_before_it_is_killed_has_ended(busy, env, ledger, db, tmp_path):
    """While the operator is asked whether it is meant."""
    here = busy("prefork")
    command = superfetch_command("jobs", "kill", here.runs.id)
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=process_env(env()), cwd=tmp_path, **pipes) as asks:
        said = b""
        while not said.endswith(b"[y/N]: "):
            said += asks.stderr.read(1)
        ledger.release()
        eventually(lambda: {"runs", "first", "second"} <= set(ledger.finishes()))
        eventually(lambda: not db.held())
        _, err = asks.communicate(b"y\n", timeout=60)
    assert asks.returncode == 1
    assert b"it has ended, or went back to its queue" in err
    assert not db.dead()
    assert here.runs.get(timeout=20) == "runs"


@pytest.mark.parametrize("killed", [True, False], ids=["the reply is lost", "the call is lost"])
def test_a_job_whose_kill_was_not_answered_does_not_run_beside_its_death(
    busy, cli, server, ledger, db, killed
):
    """Its worker cannot know whether it is in the dead set. Where it is not, it is not lost."""
    with FaultProxy(server.port) as proxy:
        here = busy("threads", url=proxy.url())
        done = proxy.cut_at(script(source("kill")), reply_lost=killed)
        said = cli("jobs", "kill", "--yes", here.first.id, code=1).err
        assert "may have done it" in said
        assert done.is_set()
        assert (here.first.id in [dead["task_id"] for dead in db.dead()]) == killed
        ledger.release()
        expected = {"runs": 1, "second": 1, **({} if killed else {"first": 1})}
        eventually(lambda: set(expected) <= set(ledger.finishes()))
        eventually(lambda: not db.held())
        assert ledger.runs() == expected


def test_the_control_a_job_that_is_moved_from_outside_runs_all_the_same(busy, bench, ledger, db):
    here = busy("threads")
    [owner] = db.owners()
    [job] = [job for job in bench.held(owner) if here.first.id in str(job.payload)]
    bench.run(bench.dead_set.kill(bench.recovery(job), marked=False, notice=b""))
    ledger.release()
    eventually(lambda: ledger.finishes().get("first"))
    eventually(lambda: not db.held())


def test_threads_cannot_be_ended(busy, cli, db):
    here = busy("threads")
    said = cli("jobs", "kill", "--yes", here.runs.id, code=1).err
    assert "cannot end it" in said
    assert not db.dead()
    assert states(cli)[here.runs.id] == "running"


def test_a_solo_worker_does_not_answer_while_it_runs_and_leaves_it_undone(busy, cli, ledger, db):
    here = busy("solo")
    assert "did not answer" in cli("jobs", "kill", "--yes", here.second.id, code=1).err
    ledger.release()
    eventually(lambda: {"runs", "first", "second"} <= set(ledger.finishes()))
    assert ledger.runs() == {"runs": 1, "first": 1, "second": 1}
    eventually(lambda: not db.held())
    assert not db.dead()


def test_what_waits_for_its_rate_limit_is_in_no_line_and_may_be_killed(
    worker, cli, shop, ledger, db
):
    limited = {"task_annotations": {"shop.note": {"rate_limit": "1/h"}}}
    worker(options=ALONE, conf=limited)
    shop.ran("first")
    second = shop.note.delay("second")
    eventually(lambda: states(cli) == {second.id: "reserved"}, every=0.1)
    cli("jobs", "kill", "--yes", second.id)
    assert [dead["task_id"] for dead in db.dead()] == [second.id]
    eventually(lambda: not db.held())
    assert ledger.runs() == {"first": 1}


def test_a_worker_of_another_app_may_have_the_same_name(worker, cli, shop, db):
    """It answers, too, that the job is none of its: as often as not first."""
    conf = {"worker_prefetch_multiplier": 4}
    worker(name="same", options=ALONE, conf=conf)
    worker(name="same", app="builder", queues=["new"])
    for number in range(2):
        shop.hold.delay(f"runs {number}")
    later = [shop.note.delay(str(n)) for n in range(6)]
    eventually(lambda: len(states(cli)) == len(later) + 2, every=0.1)
    for job in later:
        assert "Killed" in cli("jobs", "kill", "--yes", job.id).out
    assert len(db.dead()) == len(later)


def test_an_empty_id_is_not_that_of_the_only_job(worker, cli, shop, db):
    """A shell variable that is not set."""
    worker(options=ALONE)
    only = shop.note.apply_async(("only",), countdown=3600)
    eventually(lambda: states(cli) == {only.id: "parked"}, every=0.1)
    assert "no such job" in cli("jobs", "kill", "--yes", "", code=1).err
    assert not db.dead()


def test_what_is_on_probation_is_nobodys(cli, shop, client):
    suspect = shop.note.delay("suspect")
    client.rename("celery", "superfetch:probation:celery")
    client.sadd("superfetch:probation", "celery")
    assert states(cli) == {suspect.id: "probation"}
    assert "no worker has it" in cli("jobs", "kill", "--yes", suspect.id, code=1).err


def test_what_a_dead_worker_has_is_for_a_pass(busy, cli, db):
    here = busy("prefork")
    here.worker.die()
    said = cli("jobs", "kill", "--yes", here.first.id, code=1).err
    assert "superfetch reap" in said
    assert not db.dead()
