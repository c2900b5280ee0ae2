"""Lists that a user makes long: queues, their priorities, jobs, dead jobs. Lua hands over no more
than 8,000 values at once, and 2,100 queues of four priorities stopped a worker for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from celery_superfetch.migration.stock_unacked import Moved, Unacked
from celery_superfetch.model.job import Job, digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.step import Claim
from celery_superfetch.store import job_search, parked_jobs, private_lists, queues, stats
from celery_superfetch.store.in_flight_jobs import (
    PARKED,
    WAITING,
    InFlightJobs,
    JobPlace,
    SeenClaim,
)
from celery_superfetch.store.job_search import JobSearch, Sought
from celery_superfetch.store.minutes import ONE_MINUTE, WAITING_JOBS, Minutes, Row
from celery_superfetch.store.parked_jobs import ParkedJobs
from celery_superfetch.store.private_lists import WAITS
from celery_superfetch.store.queues import Queues, Suspects
from celery_superfetch.store.redis import scripts
from celery_superfetch.store.runs import RunReport, Runs
from celery_superfetch.store.stats import Stats
from support.workers.bench import Bench

MANY = 20_000

#: Scripts whose lists are of one length, whatever a user does.
OF_FIXED_LENGTH = {
    "informed",
    "kill",
    "lock",
    "lost",
    "passed",
    "probation",
    "progress",
    "retry",
    "shared",
    "suspect",
}


def many(prefix: str = "queue") -> list[str]:
    return [f"{prefix}-{number}" for number in range(MANY)]


def payloads() -> list[bytes]:
    return [b"job-%d" % number for number in range(MANY)]


def give(bench: Bench, owner: OwnerRecord) -> list[Job]:
    """Twenty thousand jobs that an owner has claimed and not started, the oldest first."""
    jobs = [
        Job(owner.owner, "mail", raw, f"{number}:mail") for number, raw in enumerate(payloads(), 1)
    ]
    fields = {name: job.payload for job in jobs for name in (job.claim_id, WAITS + job.claim_id)}
    bench.client.hset(bench.keys.private(owner.owner), mapping=fields)
    return jobs


def claim(bench: Bench) -> None:
    owner = bench.owner(lists=many())
    bench.push("queue-0", b"first")
    bench.push(f"queue-{MANY - 1}", *payloads())
    bench.land(owner, "queue-7", b"landed")
    claims = bench.claim(owner, many(), MANY + 2, turn=MANY, landed=many(), starts=MANY + 2)
    assert len(claims.jobs) == claims.started == MANY + 2
    assert not claims.errors


def ack(bench: Bench) -> None:
    owner = bench.owner()
    jobs = give(bench, owner)
    done, others = jobs[: MANY // 2], jobs[MANY // 2 :]
    assert bench.run(bench.lists.settle_counted(owner.owner, done)) == len(done)
    assert bench.run(bench.lists.settle(owner.owner, [], others)) == len(others)
    assert len(bench.lists.held(owner.owner).running) == len(others)
    assert bench.run(bench.lists.settle_counted(owner.owner, done)) == 0, "they were taken away"


def wait(bench: Bench) -> None:
    owner = bench.owner()
    ids = [job.claim_id for job in give(bench, owner)]
    bench.client.hdel(bench.keys.private(owner.owner), *(WAITS + id for id in ids))
    bench.run(bench.lists.put_notes_back(owner.owner, ids))
    assert not bench.lists.held(owner.owner).running


def requeue(bench: Bench) -> None:
    jobs = give(bench, bench.owner())
    assert bench.run(bench.lists.requeue(jobs[::-1], "front", 60_000)) == [], "all were there"
    assert bench.queue() == payloads()


def return_landed(bench: Bench) -> None:
    owner = bench.owner(lists=many())
    bench.land(owner, f"queue-{MANY - 1}", b"landed")
    assert bench.lists.return_landed(owner.owner, dict.fromkeys(many(), 60_000)) == 1
    assert bench.queue(f"queue-{MANY - 1}") == [b"landed"]


def migrate(bench: Bench) -> None:
    """A message of an exchange to which a user has bound so many queues."""
    unacked = Unacked(bench.database)
    bench.client.hset(unacked.name, "tag", b"entry")
    [entry] = unacked.read([b"tag"])
    assert unacked.move({entry: (b"job", dict.fromkeys(many(), 60_000))}) == {entry: Moved.YES}
    assert bench.queue(f"queue-{MANY - 1}") == [b"job"]
    assert not bench.client.exists(unacked.name)


def in_flight_counts(bench: Bench) -> None:
    owners = [bench.owner(lists=many()) for _ in range(3)]
    give(bench, owners[0])
    bench.land(owners[2], f"queue-{MANY - 1}", b"landed")
    held = InFlightJobs(bench.database).counts([owner.owner for owner in owners])
    assert [held[owner.owner].in_flight for owner in owners] == [MANY, 0, 1]


def pages(bench: Bench) -> None:
    bench.client.zadd(bench.keys.parked_of(f"queue-{MANY - 1}"), {"id\npayload": 1})
    names = [bench.keys.parked_of(name) for name in many()]
    found = bench.scripts.run("pages", names, [MANY, 1_000_000, 20, "0"])
    assert found[-1] == [b"0", [b"payload"]]
    places = [JobPlace(PARKED, "", name) for name in many()]
    assert [len(page) for page in InFlightJobs(bench.database).jobs(places, 100) if page] == [1]


def payloads_of(bench: Bench) -> None:
    owner = bench.owner()
    ids = [job.claim_id for job in give(bench, owner)]
    jobs, seen = bench.lists.jobs(owner.owner, ids, 2**30)
    assert (len(jobs), seen) == (MANY, MANY)


def find(bench: Bench) -> None:
    owner = bench.owner()
    claims = [SeenClaim(owner.owner, job.claim_id, False) for job in give(bench, owner)]
    search, last = JobSearch(bench.database), payloads()[-1]
    found = search.in_claims(Sought(digest(last)), claims)
    assert ([job.payload for job in found.jobs], found.examined) == ([last], MANY)
    bench.push(f"queue-{MANY - 1}", last)
    found = search.in_lists(Sought(digest(last)), [JobPlace(WAITING, "", name) for name in many()])
    assert ([job.payload for job in found.jobs], found.examined) == ([last], 1)


def counters(bench: Bench) -> None:
    assert len(bench.recoveries.counters([digest(raw) for raw in payloads()])) == MANY


def recover(bench: Bench) -> None:
    owner = bench.owner()
    jobs = give(bench, owner)
    assert bench.mark(owner)
    found = [bench.recovery(job, bench.recoveries.counters(["none"])[0]) for job in jobs[::-1]]
    assert set(bench.run(bench.recoveries.recover(found, 60_000, marked=True))) == {b"ok"}
    assert bench.queue() == payloads()


def mark(bench: Bench) -> None:
    owner = bench.owner(lists=many())
    give(bench, owner)
    assert bench.mark(owner) is not None


def heartbeat(bench: Bench) -> None:
    owner = bench.owner(lists=many())
    beat = bench.registry.heartbeat(owner, 0, {"lists": owner.dump()["lists"]})
    assert (beat.status, len(bench.record(owner).lists)) == ("ok", MANY)


def leave(bench: Bench) -> None:
    owner = bench.owner(lists=many())
    bench.land(owner, f"queue-{MANY - 1}", b"landed")
    assert bench.registry.leave(owner, 0) == 1, "one has landed"
    bench.lists.return_landed(owner.owner, owner.lists)
    assert bench.registry.leave(owner, 0) == 0


def park(bench: Bench) -> None:
    jobs = give(bench, bench.owner())
    bench.run(ParkedJobs(bench.database).park(dict.fromkeys(jobs, 1)))
    assert bench.client.zcard(bench.keys.parked_of("mail")) == MANY


def release(bench: Bench) -> None:
    for name in many():
        bench.client.zadd(bench.keys.parked_of(name), {f"id\n{name}": 1})
    bench.client.zadd(bench.keys.parked, dict.fromkeys(many(), 1))
    released = ParkedJobs(bench.database).release(dict.fromkeys(many(), 60_000))
    assert released.jobs == MANY


def quiesce(bench: Bench) -> None:
    bench.client.sadd(bench.keys.on_probation, *many())
    bench.client.lpush(bench.keys.probation("queue-0"), b"suspect")
    assert Suspects(bench.database).ask_quiesce("owner", many(), 1.0, 10).quiesces


def oldest(bench: Bench) -> None:
    bench.push(f"queue-{MANY - 1}", b"waits")
    ages = Queues(bench.database).oldest(many(), notes=True)
    assert ages.keys() == {f"queue-{MANY - 1}"}


def count_runs(bench: Bench) -> None:
    """A queue and a task of each."""
    growths = [(("succeeded", name, name), 1) for name in many()]
    Runs(bench.database).add(RunReport("a worker", 0, growths))
    assert sum(Runs(bench.database).counts().ends.values()) == MANY


def waiting(bench: Bench) -> None:
    Stats(bench.database).record_pass({"by": "a test"}, dict.fromkeys(many(), 1))
    [series] = Minutes(bench.database).series(ONE_MINUTE, [Row(WAITING_JOBS)]).values()
    assert max(count or 0 for count in series.counts) == MANY


def step(bench: Bench) -> None:
    """A queue has a list for each priority, and its user says how many there are."""
    owner = bench.owner()
    [job] = bench.give(owner, "mail", [b"job"])
    claim = Claim("here", bench.lists.key_of(job), job.claim_id, "1")
    push = bench.lists.publish_step
    assert push("one:0", "message", ["mail", *many()], 60_000, "", claim) == 1


def delete(bench: Bench) -> None:
    keys = bench.keys
    bench.client.hset(keys.dead_jobs, mapping=dict.fromkeys(many(), "{}"))
    bench.client.zadd(keys.dead, dict.fromkeys(many(), 1))
    bench.client.hset(keys.dead_caps, mapping=dict.fromkeys(many(), keys.dead_junk))
    bench.client.zadd(keys.dead_junk, dict.fromkeys(many(), 1))
    assert bench.scripts.run("delete", bench.dead_set._names, many()) == MANY
    assert not bench.client.exists(keys.dead, keys.dead_jobs, keys.dead_caps, keys.dead_junk)


def trim(bench: Bench) -> None:
    keys = bench.keys
    bench.client.hset(keys.dead_jobs, mapping=dict.fromkeys(many(), "{}"))
    bench.client.zadd(keys.dead, dict.fromkeys(many(), 1))
    bench.client.zadd(keys.dead_junk, dict.fromkeys(many(), 1))
    names = [*bench.dead_set._names, keys.dead_dropped("shop"), keys.dead_junk]
    assert bench.scripts.run("trim", names, [1, MANY, MANY, 0]) == [MANY, 0]


CASES: Sequence[Callable[[Bench], None]] = [
    claim,
    ack,
    wait,
    requeue,
    return_landed,
    migrate,
    in_flight_counts,
    pages,
    payloads_of,
    find,
    counters,
    recover,
    mark,
    heartbeat,
    leave,
    park,
    release,
    quiesce,
    oldest,
    count_runs,
    waiting,
    step,
    delete,
    trim,
]


@pytest.fixture
def bench(own: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Whose scripts get whole lists, where the package would send them in parts."""
    monkeypatch.setattr(parked_jobs, "PARKED_PER_SCRIPT", MANY)
    monkeypatch.setattr(parked_jobs, "RELEASE_LISTS", MANY)
    monkeypatch.setattr(queues, "LISTS_PER_SCRIPT", MANY)
    monkeypatch.setattr(private_lists, "LANDINGS_PER_SCRIPT", MANY)
    monkeypatch.setattr(stats, "WAITING_PER_SCRIPT", MANY)
    monkeypatch.setattr(job_search, "SEARCHES_PER_SCRIPT", MANY)
    return Bench(own)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_script_takes_twenty_thousand_of_what_a_user_can_lengthen(bench, case):
    case(bench)


def test_each_script_has_its_case():
    """A new script needs one above, if any of its lists can be long."""
    names = {path.stem for path in scripts.LUA.glob("*.lua")}
    tried = {case.__name__.removesuffix("_of") for case in CASES}
    assert names - OF_FIXED_LENGTH <= tried


def test_control_lua_hands_over_no_more_than_eight_thousand_values(own: Any):
    with pytest.raises(redis.ResponseError, match="too many results to unpack"):
        own.eval("return redis.call('EXISTS', unpack(KEYS))", MANY, *many())
