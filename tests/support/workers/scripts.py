"""Every script that moves jobs, about to run, and the keys that it touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

from celery_superfetch.model.job import Claimed, Counters, Job, digest
from celery_superfetch.store.dead_jobs import Graveyard
from celery_superfetch.store.parked import Parked
from celery_superfetch.store.wire.scripts import Call, Scripts
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
    bench.client.set(bench.keys.recovered, 1)
    bench.client.hset(bench.keys.recoveries(digest(ONE)), "recoveries", 1)
    call = bench.lists.claim(owner, ["mail"], 2, 1, starts=2)
    marks = (bench.keys.recoveries(digest(ONE)), bench.keys.recoveries(digest(TWO)))
    return Case(call, (bench.keys.private(owner, "mail"), *marks))


def ack(bench: Bench) -> Case:
    owner = bench.owner()
    one, two = (claimed.job for claimed in bench.claimed(owner, ONE, TWO))
    jobs = [Claimed(one, Counters(recoveries=1)), Claimed(two, Counters(recoveries=1))]
    starting = {Job(owner.owner, "mail", b"next", "77"): "digest"}
    return Case(bench.lists.ack(jobs, starting), settles=True)


def requeue(bench: Bench) -> Case:
    owner = bench.owner()
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE, TWO)]
    bench.client.hset(bench.keys.recoveries(digest(ONE)), "probation", 1)
    return Case(bench.lists.requeue(jobs, "front", 60_000, 1))


def park(bench: Bench) -> Case:
    owner = bench.owner()
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE, TWO)]
    return Case(Parked(bench.database).park(dict.fromkeys(jobs, DUE), 1))


def release(bench: Bench) -> Case:
    """One of two goes to its queue, the other on probation."""
    bench.run(park(bench).call)
    counters = [bench.keys.recoveries(digest(raw)) for raw in (ONE, TWO)]
    bench.client.hset(counters[0], "probation", 1)
    bench.client.set(bench.keys.recovered, 1)
    answer = [0, 0, 0, None]
    call = call_of(lambda: Parked(bench.database).release({"mail": 60_000}), answer)
    lists = bench.keys.parked_of("mail"), bench.keys.queue("mail"), bench.keys.probation("mail")
    return Case(call, (*lists, *counters))


def probation(bench: Bench) -> Case:
    owner = bench.owner().owner
    bench.client.lpush(bench.keys.probation("mail"), ONE)
    bench.client.sadd(bench.keys.on_probation, "mail")
    mark = bench.keys.recoveries(digest(ONE))
    bench.client.hset(mark, "recoveries", 1)
    return Case(bench.lists.claim_alone(owner, "mail"), (mark,))


def reaped(bench: Bench) -> str:
    owner = bench.dead_owner([ONE, TWO], running=[ONE, TWO])
    assert bench.mark(owner)
    return owner.owner


def recover(bench: Bench) -> Case:
    owner = reaped(bench)
    bench.client.hset(bench.keys.recoveries(digest(TWO)), "probation", 1)
    jobs = [Job(owner, "mail", raw, id) for raw, id in ((TWO, "1"), (ONE, "0"))]
    found = [bench.recovery(job) for job in jobs]
    return Case(bench.recoveries.recover(found, 60_000, marked=True))


def recover_to_probation(bench: Bench) -> Case:
    owner = reaped(bench)
    for raw in (ONE, TWO):
        bench.client.hset(bench.keys.recoveries(digest(raw)), "recoveries", 20)
    found = [bench.recovery(Job(owner, "mail", raw)) for raw in (TWO, ONE)]
    assert all(recovery.probation for recovery in found)
    return Case(bench.recoveries.recover(found, 60_000, marked=True))


def kill(bench: Bench) -> Case:
    owner = reaped(bench)
    bench.killed(payload("older"))
    job = Job(owner, "mail", ONE, "0")
    notice = b"dead is @dead_id@"
    return Case(bench.dead_set.kill(bench.recovery(job), 60_000, marked=True, notice=notice))


def kill_the_living(bench: Bench) -> Case:
    owner = bench.owner()
    bench.killed(payload("older"))
    [claimed] = bench.claimed(owner, ONE)
    return Case(bench.dead_set.kill(bench.recovery(claimed.job), marked=False))


def revive(bench: Bench) -> Case:
    [job] = bench.killed(ONE)
    return Case(bench.dead_set.revive(job, "mail", 60_000), (bench.keys.dead_of("shop"),))


def two_dead(bench: Bench) -> Graveyard:
    """One more than may be."""
    prefix = bench.config.global_keyprefix
    Bench(bench.client, global_keyprefix=prefix).killed(ONE, TWO)
    return bench.dead_set


def forget(bench: Bench) -> Case:
    dead_set = two_dead(bench)
    call = call_of(lambda: dead_set.delete(digest(ONE), digest(TWO)), 2)
    return Case(call, (bench.keys.dead_of("shop"),), settles=True)


def trim(bench: Bench) -> Case:
    dead_set = two_dead(bench)
    bench.client.set(bench.keys.dead_overflow("shop"), 1)
    return Case(call_of(dead_set.trim, (0, 1)), settles=True)


def call_of(method: Callable[[], object], answer: Any) -> Call:
    """The script that it would run."""
    with mock.patch.object(Scripts, "run", return_value=answer) as run:
        method()
    return Call(*run.call_args.args)


CASES = [
    claim,
    ack,
    requeue,
    park,
    release,
    probation,
    recover,
    recover_to_probation,
    kill,
    kill_the_living,
    revive,
    forget,
    trim,
]
