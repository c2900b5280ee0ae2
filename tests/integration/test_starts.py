"""Started or called off: one field decides, whoever comes first."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import redis

from celery_superfetch.facts import Facts
from celery_superfetch.job import Claimed, Job, digest
from celery_superfetch.start import Starts, Ticket
from harness.waiting import always, eventually
from parts.bench import Bench, payload


@pytest.fixture
def owner(bench: Bench) -> Facts:
    return bench.owner()


@pytest.fixture
def claimed(bench: Bench, owner: Facts) -> Claimed:
    """A job that its owner has handed to a pool."""
    bench.push("mail", payload(1))
    [claimed] = bench.in_flight.claim(owner.owner, ["mail"], 1, 1, []).jobs
    bench.in_flight.hand_over(claimed.job)
    return claimed


def ticket(claimed: Claimed, record: bool = True) -> Ticket:
    job = claimed.job
    return Ticket(job.owner, job.claim_id, digest(job.payload), record, "")


def running(bench: Bench, owner: Facts) -> dict[bytes, bytes]:
    found = bench.client.hgetall(bench.keys.running(owner.owner))
    assert isinstance(found, dict)
    return found


def starts(bench: Bench) -> Starts:
    return Starts(lambda: bench.client)


def test_a_job_that_has_started_is_not_given_back(
    bench: Bench, owner: Facts, claimed: Claimed
) -> None:
    assert starts(bench).ask(ticket(claimed)) == ""
    assert running(bench, owner) == {b"1": digest(payload(1)).encode()}
    bench.in_flight.requeue([claimed.job])
    assert bench.private(owner) == [payload(1)]
    assert bench.queue() == []
    assert bench.in_flight.outlived == {claimed.job}, "it counts against the prefetch"

    bench.in_flight.ack(claimed)
    bench.in_flight.flush()
    assert bench.private(owner) == []
    assert running(bench, owner) == {}
    assert bench.in_flight.outlived == set()


def test_a_job_that_was_given_back_does_not_start(
    bench: Bench, owner: Facts, claimed: Claimed
) -> None:
    bench.in_flight.requeue([claimed.job])
    assert bench.queue() == [payload(1)]
    # Claimed again by the same owner: the first delivery is still the wrong one to run.
    [again] = bench.in_flight.claim(owner.owner, ["mail"], 1, 1, []).jobs
    assert starts(bench).ask(ticket(claimed)) == "called off"
    assert starts(bench).ask(ticket(claimed)) == "called off", "the first answer may be lost"
    assert starts(bench).ask(ticket(again)) == ""
    assert bench.lists.running(owner.owner).digests == (digest(payload(1)),)


def test_the_control_gives_back_a_running_job_that_no_pool_was_said_to_have(
    bench: Bench, claimed: Claimed
) -> None:
    starts(bench).ask(ticket(claimed))
    bench.in_flight.ended(claimed.job)
    bench.in_flight.requeue([claimed.job])
    assert bench.queue() == [payload(1)]


def test_asking_again_after_a_lost_reply_is_no_second_start(bench: Bench, claimed: Claimed) -> None:
    own = starts(bench)
    assert (own.ask(ticket(claimed)), own.ask(ticket(claimed))) == ("", "")


@pytest.mark.parametrize("record", [True, False])
def test_nothing_starts_for_an_owner_that_was_reaped(
    bench: Bench, owner: Facts, claimed: Claimed, record: bool
) -> None:
    score = bench.registry.owners()[owner.owner]
    assert bench.registry.mark(owner.owner, owner.process.host, score, 60, "gone")
    assert starts(bench).ask(ticket(claimed, record)) == "reaped"
    assert running(bench, owner) == {}


#: Is frozen when it has its answer and has not looked at it.
FROZEN = """
import os, signal, sys
import redis
from celery_superfetch import start

start.START_WAIT = float(sys.argv[1])
run, frozen = start.Scripts.ask, []

def run_and_freeze(*args):
    answer = run(*args)
    if not frozen:
        frozen.append(True)
        os.kill(os.getpid(), signal.SIGSTOP)
    return answer

start.Scripts.ask = run_and_freeze
owner, claim_id, digest = sys.argv[3:]
ticket = start.Ticket(owner, claim_id, digest, True, "")
print(start.Starts(lambda: redis.Redis.from_url(sys.argv[2])).ask(ticket) or "may start")
"""


@pytest.mark.parametrize(("wait", "answer"), [(0.3, "reaped"), (60.0, "may start")])
def test_an_answer_that_is_older_than_a_freeze_is_asked_for_again(
    bench: Bench, url: str, owner: Facts, claimed: Claimed, wait: float, answer: str
) -> None:
    """With a longer wait, the control, it starts what was given to somebody else."""
    argv = [sys.executable, "-c", FROZEN, str(wait), url, *ticket(claimed)[:3]]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as frozen:
        eventually(lambda: psutil.Process(frozen.pid).status() == psutil.STATUS_STOPPED)
        score = bench.registry.owners()[owner.owner]
        assert bench.registry.mark(owner.owner, owner.process.host, score, 60, "gone")
        always(lambda: frozen.poll() is None, during=0.5)
        psutil.Process(frozen.pid).resume()
        out, _ = frozen.communicate(timeout=30)
    assert out.strip() == answer


def test_a_task_with_early_ack_leaves_no_record(
    bench: Bench, owner: Facts, claimed: Claimed
) -> None:
    """Its ack may have gone out before; nothing would ever remove the record."""
    assert starts(bench).ask(ticket(claimed, record=False)) == ""
    assert running(bench, owner) == {}


def test_an_owner_whose_row_is_missing_may_run_its_jobs(
    bench: Bench, owner: Facts, claimed: Claimed
) -> None:
    """A replica that was promoted may not have heard of it yet; the next heartbeat mends that."""
    bench.client.delete(bench.keys.facts(owner.owner))
    assert starts(bench).ask(ticket(claimed)) == ""


def test_a_server_that_refuses_to_record_holds_up_nobody_and_is_told_later(
    bench: Bench, url: str, owner: Facts, claimed: Claimed
) -> None:
    bench.client.execute_command(
        "ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@all", "-hset", "-eval", "-evalsha"
    )
    try:
        at = redis.Redis.from_url(url).connection_pool.connection_kwargs
        forbidden = redis.Redis(
            host=at["host"], port=at["port"], db=at["db"], username="reader", password="x"
        )
        clients = iter([forbidden, bench.client])
        own = Starts(lambda: next(clients))
        assert own.ask(ticket(claimed)) == ""
        assert running(bench, owner) == {}
        own._scripts = None
        assert own.ask(ticket(claimed)) == ""
        assert len(running(bench, owner)) == 1
        assert bench.stat("unrecorded") == 1
    finally:
        bench.client.execute_command("ACL", "DELUSER", "reader")


def test_an_owner_that_leaves_takes_its_record_along(
    bench: Bench, owner: Facts, claimed: Claimed
) -> None:
    starts(bench).ask(ticket(claimed))
    bench.in_flight.ack(claimed)
    bench.in_flight.flush()
    bench.client.hset(bench.keys.running(owner.owner), "left", "-")
    assert bench.registry.leave(owner, 0) == 0
    assert bench.key_names() == {bench.keys.stats} & bench.key_names()


@pytest.mark.parametrize("in_pool", [True, False])
def test_a_return_that_comes_a_second_time_leaves_the_new_claim_alone(
    bench: Bench, owner: Facts, claimed: Claimed, in_pool: bool
) -> None:
    """A network that stood still: the call was repeated, served, and then the first one arrives."""
    late = bench.lists.requeue([claimed.job], "front", 0, [claimed.job] if in_pool else [])
    assert bench.run(late) == [1]
    [again] = bench.in_flight.claim(owner.owner, ["mail"], 1, 1, []).jobs
    assert starts(bench).ask(ticket(again)) == ""
    assert bench.run(late) == [0]
    assert bench.private(owner) == [payload(1)], "it runs"
    assert bench.queue() == []


# -- a suspect, alone


@pytest.fixture
def suspect(bench: Bench, owner: Facts) -> Job:
    """A job on probation that its owner has claimed and handed to a pool."""
    bench.client.lpush(bench.keys.probation("mail"), payload("suspect"))
    bench.client.hset(bench.keys.recoveries(digest(payload("suspect"))), "probation", 1)
    claimed = bench.in_flight.claim_alone(owner.owner, "mail")
    assert claimed is not None
    bench.in_flight.hand_over(claimed.job)
    return claimed.job


def test_a_suspect_that_was_not_started_goes_back_on_probation(
    bench: Bench, owner: Facts, suspect: Job
) -> None:
    """It is recorded from its claim on, which must not be taken for its start."""
    bench.in_flight.requeue([suspect])
    assert bench.on_probation() == [payload("suspect")]
    assert bench.in_flight.alone is None
    assert running(bench, owner) == {suspect.claim_id.encode(): b"-"}
    assert bench.in_flight.claim_alone(owner.owner, "mail"), "and has its turn again"


def test_nothing_starts_beside_a_suspect_and_it_beside_nothing(
    bench: Bench, owner: Facts, suspect: Job
) -> None:
    bench.push("mail", payload("beside"))
    [beside] = bench.in_flight.claim(owner.owner, ["mail"], 1, 1, []).jobs
    early = ticket(beside, record=False)
    assert starts(bench).ask(ticket(beside)) == "beside probation"
    assert starts(bench).ask(early) == "", "it may be settled already"
    alone = ticket(Claimed(suspect))
    assert starts(bench).ask(alone) == ""
    bench.in_flight.requeue([suspect])
    assert bench.in_flight.alone == suspect, "it runs"
    bench.client.hset(bench.keys.running(owner.owner), "other", "another")
    assert starts(bench).ask(alone) == "not alone"


def test_what_a_lost_ack_or_claim_left_is_forgotten(
    bench: Bench, owner: Facts, claimed: Claimed
) -> None:
    """Or nothing would ever start beside a suspect that nobody has any more."""
    starts(bench).ask(ticket(claimed))
    key = bench.keys.running(owner.owner)
    bench.client.hset(key, mapping={"alone": "ff", "ff": "gone", "fe": "-"})
    bench.in_flight.reconcile(owner.owner, ["mail"])
    mine = claimed.job.claim_id.encode()
    assert running(bench, owner) == {mine: digest(payload(1)).encode(), b"fe": b"-"}
