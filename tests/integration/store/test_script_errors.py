"""D2. Whatever fails in a script that moves jobs, each job is in exactly one place afterwards.

With a `strike_window` of 10**16 s EXPIRE failed behind LREM, and three of three jobs were nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest
import redis

from celery_superfetch.model.job import Claimed, Earlier, Job, digest
from celery_superfetch.store.dead_jobs import Graveyard
from celery_superfetch.store.unacked import Delivery, StockJob, Unacked
from celery_superfetch.store.wire.scripts import Call, Scripts, source
from support.servers.whereabouts import content, places
from support.workers.bench import Bench, payload

ONE, TWO = payload("1"), payload("2")


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
    bench.run(bench.lists.hold([two]))
    jobs = [Claimed(one, Earlier(1)), Claimed(two, Earlier(1))]
    starting = {Job(owner.owner, "mail", b"next", "77"): "digest"}
    return Case(bench.lists.ack(jobs, starting, {two}), settles=True)


def requeue(bench: Bench) -> Case:
    owner = bench.owner()
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE, TWO)]
    bench.run(bench.lists.hold(jobs[1:]))
    bench.client.hset(bench.keys.recoveries(digest(ONE)), "probation", 1)
    return Case(bench.lists.requeue(jobs, "front", 60_000, 1))


def hold(bench: Bench) -> Case:
    owner = bench.owner()
    return Case(bench.lists.hold([claimed.job for claimed in bench.claimed(owner, ONE, TWO)]))


def unhold(bench: Bench) -> Case:
    owner = bench.owner()
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE, TWO)]
    bench.run(bench.lists.hold(jobs))
    return Case(bench.lists.unhold(owner.owner, "mail", [job.claim_id for job in jobs]))


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
    return Case(bench.dead_set.kill(bench.recovery(job), marked=True))


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
    Bench(bench.client).killed(ONE, TWO)
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


def migrate(bench: Bench) -> Case:
    unacked = Unacked(bench.database, "unacked", "unacked_index")
    jobs = []
    for at, raw in enumerate((TWO, ONE), 1):
        value = b"[" + raw + b', "", "mail"]'
        delivery = Delivery(f"tag-{at}".encode(), float(at))
        bench.client.hset("unacked", delivery.tag, value)
        bench.client.zadd("unacked_index", {delivery.tag: at})
        job = StockJob.parse(delivery, value)
        assert job is not None
        jobs.append((job, {"mail": 60_000}))
    return Case(unacked.take(jobs))


CASES = [
    claim,
    ack,
    requeue,
    hold,
    unhold,
    probation,
    recover,
    recover_to_probation,
    kill,
    kill_the_living,
    revive,
    forget,
    trim,
    migrate,
]

each_script = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """With a dead set that is full as soon as a second job comes."""
    return make_bench(dead_limit=1)


def check(found: dict[bytes, Any], before: dict[bytes, Any], settles: bool) -> None:
    for raw in (ONE, TWO):
        if places(before, raw):
            assert len(places(found, raw)) in ((0, 1) if settles else (1,)), places(found, raw)


WRONG: dict[str, Callable[[redis.Redis, str], Any]] = {
    "string": lambda client, key: client.set(key, "?"),
    "list": lambda client, key: client.rpush(key, "?"),
    "hash": lambda client, key: client.hset(
        key, mapping=dict.fromkeys(("?", "recoveries", "recovered", "requeues", "state"), "?")
    ),
    "set": lambda client, key: client.sadd(key, "?"),
    "zset": lambda client, key: client.zadd(key, {"?": 1}),
}


@pytest.mark.parametrize("wrong", WRONG)
@each_script
def test_what_holds_something_else_is_found_before_anything_moves(
    bench: Bench, client: redis.Redis, case: Callable[[Bench], Case], wrong: str
) -> None:
    """A script that answers with an error has changed nothing, whichever key is to blame."""

    def keys(made: Case) -> list[str]:
        return [*dict.fromkeys([*made.call.keys, *made.more])]

    for at in range(len(keys(case(bench)))):
        client.flushall()
        made = case(bench)
        key = keys(made)[at]
        now = content(client)
        if any(key.encode() in places(now, raw) for raw in (ONE, TWO)):
            continue  # the job itself would be gone
        client.delete(key)
        WRONG[wrong](client, key)
        before = content(client)
        try:
            bench.run(made.call)
        except redis.ResponseError:
            # But for a lock: whoever retries a job lets others try, whatever comes of it.
            assert content(client) == {k: v for k, v in before.items() if b":lock:" not in k}, key
        else:
            check(content(client), before, made.settles)


#: Counts what a script asks for, and fails at one of them; but not between the departure of a job
#: and its arrival, which follow each other: of what can refuse that the test above knows all.
INJECTED = """
local real, count, leaves = redis, 0, {LREM = true, HDEL = true, RPOP = true}
local arrives, last = {LPUSH = true, RPUSH = true, HSET = true, HSETNX = true}, ''
local function refused(name)
  count = count + 1
  local between = leaves[last] and arrives[name]
  last = name
  return count == %d and not between
end
local redis = setmetatable({
  call = function(name, ...)
    if refused(name) then error('injected') end
    return real.call(name, ...)
  end,
  pcall = function(name, ...)
    if refused(name) then return {err = 'injected'} end
    return real.pcall(name, ...)
  end,
}, {__index = real})
"""

#: Commands of the longest script, more than enough.
COMMANDS = 60


@each_script
def test_an_error_at_any_command_leaves_each_job_in_one_place(
    bench: Bench, client: redis.Redis, case: Callable[[Bench], Case]
) -> None:
    failed = 0
    for number in range(1, COMMANDS):
        client.flushall()
        made = case(bench)
        name, keys, args, _ = made.call
        before = content(client)
        whole, text = bench.scripts._source(name), source(name)
        text = whole.removesuffix(text) + INJECTED % number + text
        try:
            client.eval(text, len(keys) + 1, *keys, bench.keys.never, *args)
        except redis.ResponseError:
            failed += 1
        check(content(client), before, made.settles)
    assert failed >= 2, "there were errors"


def test_control_a_job_that_leaves_before_the_check_is_lost(
    bench: Bench, client: redis.Redis
) -> None:
    """The look at the places has teeth."""
    made = hold(bench)
    before = content(client)
    text = "redis.call('LREM', KEYS[1], 1, ARGV[1]) redis.call('HSET', KEYS[2], 'x')"
    with pytest.raises(redis.ResponseError):
        client.eval(text, len(made.call.keys), *made.call.keys, *made.call.args)
    with pytest.raises(AssertionError):
        check(content(client), before, settles=False)
