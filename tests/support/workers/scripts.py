"""Every script that moves jobs, about to run, and the keys that it touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

from celery_superfetch.model.dead_job import Progress
from celery_superfetch.model.job import Job, digest
from celery_superfetch.model.step import Claim
from celery_superfetch.store.dead_set import DeadSetStore
from celery_superfetch.store.parked_jobs import ParkedJobs
from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.scripts import Scripts
from support.workers.bench import Bench, payload

ONE, TWO = payload("1"), payload("2")

DUE = 1000  # server ms: long ago


class Case(NamedTuple):
    """A script about to run, and what it touches."""

    call: Call
    #: Keys that it names itself.
    more: tuple[str, ...] = ()
    #: Those of its jobs that it may settle for good.
    settles: bool = False


def claim(bench: Bench) -> Case:
    owner = bench.owner().owner
    bench.push("mail", ONE, TWO)
    bench.client.set(bench.keys.has_history, 1)
    bench.client.hset(bench.keys.history(digest(ONE)), "recoveries", 1)
    call = bench.lists.claim_call(owner, ["mail"], 2, 1, [], 2)
    return Case(call, tuple(bench.keys.history(digest(raw)) for raw in (ONE, TWO)))


def claim_beside_a_pause(bench: Bench) -> Case:
    """One of two queues is paused; what landed from it stays."""
    owner = bench.owner().owner
    bench.land(owner, "mail", ONE)
    bench.push("slow", TWO)
    bench.paused.pause("mail", "a person")
    call = bench.lists.claim_call(owner, ["mail", "slow"], 2, 1, ["mail"], 2)
    return Case(call, (bench.keys.landing(owner, "mail"),))


def claim_what_landed(bench: Bench) -> Case:
    """One of two, and with it the other, which waits."""
    owner = bench.owner().owner
    bench.land(owner, "mail", ONE)
    bench.push("mail", TWO)
    bench.client.set(bench.keys.has_history, 1)
    call = bench.lists.claim_call(owner, ["mail"], 2, 1, ["mail"], 2)
    counters = (bench.keys.history(digest(raw)) for raw in (ONE, TWO))
    return Case(call, (bench.keys.landing(owner, "mail"), *counters))


def return_landed(bench: Bench) -> Case:
    owner = bench.owner().owner
    bench.land(owner, "mail", ONE)
    bench.land(owner, "slow", TWO)
    return Case(call_of(lambda: bench.lists.return_landed(owner, {"mail": 60_000, "slow": 0}), 2))


def ack(bench: Bench) -> Case:
    owner = bench.owner().owner
    jobs = bench.give(owner, "mail", [ONE, TWO])
    return Case(bench.lists.settle_counted(owner, jobs), settles=True)


def requeue(bench: Bench) -> Case:
    owner = bench.owner()
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE, TWO)]
    bench.client.hset(bench.keys.history(digest(ONE)), "solo_runs", 1)
    return Case(bench.lists.requeue(jobs, "front", 60_000))


def step(bench: Bench) -> Case:
    owner = bench.owner()
    [claimed] = bench.claimed(owner, ONE)
    claim = Claim("here", bench.lists.key_of(claimed.job), claimed.job.claim_id, claimed.token)
    lists = ["mail", "mail", "slow"]
    message = payload("next").decode()
    return Case(
        call_of(lambda: bench.lists.publish_step("one:0", message, lists, 60_000, "", claim), 1)
    )


def park(bench: Bench) -> Case:
    owner = bench.owner()
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE, TWO)]
    return Case(ParkedJobs(bench.database).park(dict.fromkeys(jobs, DUE)))


def postpone(bench: Bench) -> Case:
    owner = bench.owner()
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE, TWO)]
    return Case(ParkedJobs(bench.database).postpone(dict.fromkeys(jobs, DUE)))


def release(bench: Bench) -> Case:
    """One of two goes to its queue, the other on probation."""
    bench.run(park(bench).call)
    counters = [bench.keys.history(digest(raw)) for raw in (ONE, TWO)]
    bench.client.hset(counters[0], "solo_runs", 1)
    bench.client.set(bench.keys.has_history, 1)
    answer = [0, 0, 0, None, 0]
    call = call_of(lambda: ParkedJobs(bench.database).release({"mail": 60_000}), answer)
    lists = bench.keys.parked_of("mail"), bench.keys.queue("mail"), bench.keys.probation("mail")
    return Case(call, (*lists, *counters))


def probation(bench: Bench) -> Case:
    owner = bench.owner().owner
    bench.client.lpush(bench.keys.probation("mail"), ONE)
    bench.client.sadd(bench.keys.on_probation, "mail")
    mark = bench.keys.history(digest(ONE))
    bench.client.hset(mark, "recoveries", 1)
    return Case(bench.lists.claim_suspect(owner, "mail"), (mark,))


def reaped(bench: Bench) -> list[Job]:
    """Orphans, newest first."""
    owner = bench.dead_owner([ONE, TWO], running=[ONE, TWO])
    assert bench.mark(owner)
    return bench.held(owner)


def recover(bench: Bench) -> Case:
    orphans = reaped(bench)
    bench.client.hset(bench.keys.history(digest(TWO)), "solo_runs", 1)
    found = [bench.recovery(job) for job in orphans]
    return Case(bench.recoveries.recover(found, 60_000, marked=True))


def recover_to_probation(bench: Bench) -> Case:
    orphans = reaped(bench)
    for raw in (ONE, TWO):
        bench.client.hset(bench.keys.history(digest(raw)), "recoveries", 20)
    found = [bench.recovery(job) for job in orphans]
    assert all(recovery.solo_runs for recovery in found)
    return Case(bench.recoveries.recover(found, 60_000, marked=True))


def kill(bench: Bench) -> Case:
    _, job = reaped(bench)
    bench.killed(payload("older"))
    notice = b"dead is @dead_id@"
    return Case(bench.dead_set.kill_call(bench.recovery(job), 60_000, marked=True, notice=notice))


def kill_the_living(bench: Bench) -> Case:
    owner = bench.owner()
    bench.killed(payload("older"))
    [claimed] = bench.claimed(owner, ONE)
    return Case(bench.dead_set.kill_call(bench.recovery(claimed.job), marked=False))


def retry(bench: Bench) -> Case:
    [job] = bench.killed(ONE)
    return Case(bench.dead_set.retry_call(job, "mail", 60_000), (bench.keys.dead_of("shop"),))


def two_dead(bench: Bench) -> DeadSetStore:
    """One more than may be."""
    prefix = bench.config.global_keyprefix
    Bench(bench.client, global_keyprefix=prefix).killed(ONE, TWO)
    return bench.dead_set


def delete(bench: Bench) -> Case:
    dead_set = two_dead(bench)
    call = call_of(lambda: dead_set.delete(digest(ONE), digest(TWO)), 2)
    return Case(call, (bench.keys.dead_of("shop"),), settles=True)


def trim(bench: Bench) -> Case:
    dead_set = two_dead(bench)
    bench.client.hset(bench.keys.dead_dropped("shop"), bench.keys.dead_of("shop"), 1)
    return Case(call_of(dead_set.trim, [0] * 6), settles=True)


def progress(bench: Bench) -> Case:
    [job] = Bench(bench.client, global_keyprefix=bench.config.global_keyprefix).killed(ONE)
    call = call_of(lambda: bench.dead_set.store_progress(job, Progress(signalled=True)), 1)
    return Case(call, (bench.keys.dead_of("shop"),))


def call_of(method: Callable[[], object], answer: Any) -> Call:
    """The script that it would run."""
    with mock.patch.object(Scripts, "run", return_value=answer) as run:
        method()
    return Call(*run.call_args.args)


CASES = [
    claim,
    claim_what_landed,
    claim_beside_a_pause,
    return_landed,
    ack,
    requeue,
    step,
    park,
    postpone,
    release,
    probation,
    recover,
    recover_to_probation,
    kill,
    kill_the_living,
    retry,
    delete,
    trim,
    progress,
]
