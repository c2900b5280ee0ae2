"""`jobs release` and `jobs kill`: an operator takes jobs from real workers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_superfetch import PoisonPill
from celery_superfetch.store.wire.scripts import source
from support.servers.database import Database
from support.servers.faults import script
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.waiting import always, eventually
from support.workers.cli import Result

pytestmark = pytest.mark.usefixtures("no_results_left")

#: No pass and no heartbeat helps.
ALONE = {"reap_interval": 3600}
POOLS = ["prefork", "threads", "gevent"]


@pytest.fixture
def busy(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, cli: Callable[..., Result]
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


def states(cli: Callable[..., Result]) -> dict[str, str]:
    return {job["id"]: job["state"] for job in cli("jobs", "--json").json()["jobs"]}


@pytest.mark.parametrize("pool", POOLS)
def test_a_reserved_job_goes_to_another_worker(
    busy: Any, cli: Any, worker: Any, ledger: Ledger, db: Database, pool: str
) -> None:
    """It runs elsewhere while its worker still runs another, and there only."""
    here = busy(pool)
    told = cli("jobs", "release", here.first.id[:12], "--json").json()
    assert [job["id"] for job in told["released"]] == [here.first.id]
    assert told["errors"] == []
    # A read that waited already may have brought it back, and gives it away.
    eventually(lambda: db.waiting() == ["first"])
    always(lambda: db.waiting() == ["first"], 1.5, message="it is not claimed again")
    other = worker(options=ALONE, concurrency=1)
    eventually(lambda: ledger.finishes().get("first"))
    assert not ledger.finishes().get("runs")
    ledger.release()
    eventually(lambda: {"runs", "second"} <= set(ledger.finishes()))
    assert ledger.runs() == {"runs": 1, "first": 1, "second": 1}
    eventually(lambda: not db.held())
    assert other.alive()
    assert here.worker.alive()


@pytest.mark.parametrize("pool", POOLS)
def test_it_comes_back_when_its_turn_would_have_come(
    busy: Any, cli: Any, ledger: Ledger, db: Database, client: Any, pool: str
) -> None:
    """Nobody else takes it: the husk of its place in line is dropped, and it is claimed anew."""
    here = busy(pool)
    for id in (here.first.id, here.second.id):
        cli("jobs", "release", id)
    eventually(lambda: db.waiting() == ["second", "first"])
    assert "has ended, or waits" in cli("jobs", "release", here.first.id, code=1).err
    ledger.release()
    eventually(lambda: {"runs", "first", "second"} <= set(ledger.finishes()))
    assert ledger.runs() == {"runs": 1, "first": 1, "second": 1}
    eventually(lambda: not db.held())
    assert not db.dead()


def test_the_control_without_a_husk_it_is_back_at_once(busy: Any, cli: Any, client: Any) -> None:
    here = busy("threads", env={"WITHOUT": "husks"})
    cli("jobs", "release", here.first.id)
    eventually(lambda: client.hget("superfetch:stats", "requeued") == b"1")
    eventually(lambda: states(cli).get(here.first.id) == "reserved", every=0.1)


def test_what_is_not_reserved_is_refused_with_what_to_do(
    busy: Any, cli: Any, shop: Any, db: Database
) -> None:
    here = busy("prefork")
    begin = here.runs.id[:8]
    later = shop.note.apply_async(("later",), countdown=3600, task_id=f"{begin}-later")
    eventually(lambda: states(cli).get(later.id) == "eta", every=0.1)
    assert "jobs kill --terminate" in cli("jobs", "release", here.runs.id, code=1).err
    assert "waits for its time" in cli("jobs", "release", later.id, code=1).err
    assert "--terminate" in cli("jobs", "kill", "--yes", here.runs.id, code=1).err
    assert "no such job" in cli("jobs", "release", "nonsense", code=1).err
    assert "fits 2 jobs" in cli("jobs", "release", begin, code=1).err
    assert sorted(states(cli).values()) == ["eta", "reserved", "reserved", "running"]
    assert not db.dead()


@pytest.mark.parametrize("pool", POOLS)
def test_a_killed_job_is_in_the_dead_set_and_does_not_run(
    busy: Any, cli: Any, shop: Any, make_app: Any, ledger: Ledger, db: Database, pool: str
) -> None:
    here = busy(pool)
    later = shop.note.apply_async(("later",), countdown=3600)
    eventually(lambda: states(cli).get(later.id) == "eta", every=0.1)
    assert "Aborted" in cli("jobs", "kill", here.first.id, code=1).err
    told = cli("jobs", "kill", "--yes", "--json", here.first.id, later.id).json()
    assert {job["id"] for job in told["killed"]} == {here.first.id, later.id}
    for killed in (here.first, later):
        with pytest.raises(PoisonPill, match="killed by an operator"):
            killed.get(timeout=20)
    assert {dead["reason"] for dead in db.dead()} == {"killed by an operator"}
    assert sorted(states(cli).values()) == ["reserved", "running"]
    # The same bytes come back to the worker in whose line the empty request still is.
    cli("dead", "retry", here.first.id)
    ledger.release()
    eventually(lambda: {"runs", "second", "first"} <= set(ledger.finishes()))
    assert ledger.runs() == {"runs": 1, "first": 1, "second": 1}
    eventually(lambda: not db.held())
    assert make_app().AsyncResult(here.first.id).get(timeout=20) == "first"


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_run_is_ended_and_its_place_is_free(
    busy: Any, cli: Any, ledger: Ledger, db: Database, pool: str
) -> None:
    here = busy(pool)
    cli("jobs", "kill", "--yes", "--terminate", here.runs.id)
    eventually(lambda: {"first", "second"} <= set(ledger.finishes()))
    with pytest.raises(PoisonPill, match="killed by an operator"):
        here.runs.get(timeout=20)
    assert [dead["task_id"] for dead in db.dead()] == [here.runs.id]
    eventually(lambda: not db.held())
    assert ledger.runs() == {"runs": 1, "first": 1, "second": 1}
    assert not ledger.finishes().get("runs")
    assert here.runs.state == "FAILURE"


@pytest.mark.parametrize("killed", [True, False], ids=["the reply is lost", "the order is lost"])
def test_a_job_whose_kill_was_not_answered_does_not_run_beside_its_death(
    busy: Any,
    cli: Any,
    shop: SimpleNamespace,
    server: Any,
    ledger: Ledger,
    db: Database,
    killed: bool,
) -> None:
    """Its worker cannot know whether it is in the dead set. Where it is not, it is not lost."""
    with FaultProxy(server.port) as proxy:
        here = busy("threads", url=proxy.url())
        cli("jobs", "kill", "--yes", here.second.id)  # now the server knows the script
        done = proxy.cut_at(script(source("kill")), reply_lost=killed)
        said = cli("jobs", "kill", "--yes", here.first.id, code=1).err
        assert "may have done it" in said
        assert done.is_set()
        assert (here.first.id in [dead["task_id"] for dead in db.dead()]) == killed
        shop.note.delay("behind")
        ledger.release()
        expected = {"runs": 1, "behind": 1, **({} if killed else {"first": 1})}
        eventually(lambda: set(expected) <= set(ledger.finishes()))
        eventually(lambda: not db.held())
        assert ledger.runs() == expected


def test_threads_cannot_be_ended(busy: Any, cli: Any, db: Database) -> None:
    here = busy("threads")
    said = cli("jobs", "kill", "--yes", "--terminate", here.runs.id, code=1).err
    assert "cannot end it" in said
    assert not db.dead()
    assert states(cli)[here.runs.id] == "running"


def test_a_solo_worker_does_not_answer_while_it_runs_and_leaves_it_undone(
    busy: Any, cli: Any, ledger: Ledger, db: Database, client: Any
) -> None:
    here = busy("solo")
    assert "did not answer" in cli("jobs", "release", here.first.id, code=1).err
    assert "did not answer" in cli("jobs", "kill", "--yes", here.second.id, code=1).err
    ledger.release()
    eventually(lambda: {"runs", "first", "second"} <= set(ledger.finishes()))
    assert ledger.runs() == {"runs": 1, "first": 1, "second": 1}
    eventually(lambda: not db.held())
    assert not client.hexists("superfetch:stats", "requeued"), "the orders came too late"
    assert not db.dead()


def test_what_waits_for_its_rate_limit_is_in_no_line_and_may_be_killed(
    worker: Any, cli: Any, shop: Any, ledger: Ledger, db: Database
) -> None:
    limited = {"task_annotations": {"shop.note": {"rate_limit": "1/h"}}}
    worker(options=ALONE, conf=limited)
    shop.note.delay("first")
    eventually(lambda: ledger.finishes().get("first"))
    second = shop.note.delay("second")
    eventually(lambda: states(cli) == {second.id: "reserved"}, every=0.1)
    assert "rate limit" in cli("jobs", "release", second.id, code=1).err
    cli("jobs", "kill", "--yes", second.id)
    assert [dead["task_id"] for dead in db.dead()] == [second.id]
    eventually(lambda: not db.held())
    assert ledger.runs() == {"first": 1}


def test_a_worker_of_another_app_may_have_the_same_name(
    worker: Any, cli: Any, shop: Any, db: Database
) -> None:
    """It answers, too, that the job is none of its: as often as not first."""
    worker(name="same", options=ALONE), worker(name="same", app="builder", queues=["new"])
    later = [shop.note.apply_async((str(n),), countdown=3600) for n in range(6)]
    eventually(lambda: len(states(cli)) == len(later), every=0.1)
    for job in later:
        assert "Killed" in cli("jobs", "kill", "--yes", job.id).out
    assert len(db.dead()) == len(later)


def test_an_empty_id_is_not_that_of_the_only_job(
    worker: Any, cli: Any, shop: Any, db: Database
) -> None:
    """A shell variable that is not set."""
    worker(options=ALONE)
    only = shop.note.apply_async(("only",), countdown=3600)
    eventually(lambda: states(cli) == {only.id: "eta"}, every=0.1)
    assert "no such job" in cli("jobs", "kill", "--yes", "", code=1).err
    assert not db.dead()


def test_what_is_on_probation_is_nobodys(cli: Any, shop: Any, client: Any) -> None:
    suspect = shop.note.delay("suspect")
    client.rename("celery", "superfetch:probation:celery")
    client.sadd("superfetch:probation", "celery")
    assert states(cli) == {suspect.id: "probation"}
    for command in (["release"], ["kill", "--yes"]):
        assert "no worker has it" in cli("jobs", *command, suspect.id, code=1).err


def test_a_dead_worker_and_one_that_does_not_know_the_order(
    busy: Any, cli: Any, worker: Any
) -> None:
    here = busy("prefork", env={"WITHOUT": "orders"})
    assert "does not know this order" in cli("jobs", "release", here.first.id, code=1).err
    here.worker.kill9_all()
    here.worker.wait_gone()
    said = cli("jobs", "release", here.first.id, code=1).err
    assert "superfetch reap" in said
