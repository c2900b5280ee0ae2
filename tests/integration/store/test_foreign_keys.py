"""Keys under which the package has its notes, and where a stranger has written another type.

A list at the place of one history kept all jobs of its dead owner where they were, in each pass;
a text at the place of the index of suspects ended the heartbeats of all workers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import redis

from celery_superfetch.model.job import Job, digest
from celery_superfetch.store.keyspace import Keyspace
from celery_superfetch.store.minutes import ONE_MINUTE, WAITING_JOBS, Minutes, Row
from celery_superfetch.store.queues import Queues, Suspects
from celery_superfetch.store.redis import scripts
from celery_superfetch.store.runs import RunReport, Runs
from celery_superfetch.store.stats import Stats
from support.servers.whereabouts import content, places
from support.workers.bench import Bench, payload
from support.workers.scripts import CASES, ONE, TWO, Case

#: Keys of notes: jobs do not depend on what is there.
NOTES = re.compile(r"superfetch:(history:.*|probation|stats|stopped|minutes(:rows)?)$")

WRONG: dict[str, Callable[[redis.Redis, str], object]] = {
    "string": lambda client, key: client.set(key, "a text"),
    "list": lambda client, key: client.rpush(key, "an item"),
    "zset": lambda client, key: client.zadd(key, {"member": 1}),
}


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(dead_limit=1)


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that trust the type of each key: the control."""
    real, careful = scripts.source, "redis.pcall(command, key"
    assert careful in real("recover")
    monkeypatch.setattr(
        scripts, "source", lambda name: real(name).replace(careful, "redis.call(command, key")
    )


def notes_of(case: Case) -> list[str]:
    keys = dict.fromkeys([*case.call.keys, *case.more])
    return [key for key in keys if NOTES.fullmatch(key)]


def where(client: redis.Redis) -> list[list[str]]:
    """Where the two jobs of a case are; owners have another name in each run."""
    there = content(client)
    names = [[key.decode() for key in places(there, raw)] for raw in (ONE, TWO)]
    return [sorted(re.sub(r"\|[^:|]+\|[0-9a-f]{12}", "", name) for name in some) for some in names]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_script_takes_a_note_of_another_type_for_none(bench, client, case, wrong):
    def run(at: int, break_key: Callable[[str], object]) -> tuple[str, list[list[str]]]:
        client.flushall()
        made = case(bench)
        key = notes_of(made)[at]
        client.delete(key)
        break_key(key)
        bench.run(made.call)
        return key, where(client)

    for at in range(len(notes_of(case(bench)))):
        _, without = run(at, lambda key: None)
        key, found = run(at, lambda key: WRONG[wrong](client, key))
        assert found == without, key


@pytest.mark.parametrize("name", ["requeue", "recover", "probation", "kill"])
def test_control_a_script_that_trusts_the_type_of_a_history_moves_nothing(
    trusting, bench, client, name
):
    [case] = [case for case in CASES if case.__name__ == name]
    made = case(bench)
    for key in notes_of(made):
        if ":history:" in key:
            client.delete(key)
            client.set(key, "a text")
    before = where(client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        bench.run(made.call)
    assert where(client) == before


def heartbeat(bench: Bench) -> list[str]:
    owner = bench.owner()
    assert bench.registry.heartbeat(owner, 0, {}).status == "ok"
    return [bench.keys.on_probation]


def quiesce(bench: Bench) -> list[str]:
    bench.client.lpush(bench.keys.probation("mail"), payload("suspect"))
    assert Suspects(bench.database).ask_quiesce("owner", ["mail"], 1.0, 10).quiesces
    return [bench.keys.quiesce, bench.keys.on_probation]


def lock(bench: Bench) -> list[str]:
    assert bench.database.try_lock("all", 10.0), "or no process makes a pass"
    assert not bench.database.try_lock("all", 10.0)
    return [bench.keys.lock("all")]


def oldest(bench: Bench) -> list[str]:
    bench.push("mail", payload("waits"))
    queues = Queues(bench.database)
    assert queues.oldest(["mail"]) == {}
    assert queues.oldest(["mail"], notes=True).keys() == {"mail"}
    return [bench.keys.oldest]


def count_runs(bench: Bench) -> list[str]:
    Runs(bench.database).add(RunReport("a worker", 0, [(("succeeded", "mail", "shop.note"), 2)]))
    assert sum(Runs(bench.database).counts().ends.values()) == 2
    [series] = Minutes(bench.database).series(ONE_MINUTE, [Row("succeeded")]).values()
    assert sum(count or 0 for count in series.counts) == 2
    keys = bench.keys
    return [keys.runs, keys.run_rows, keys.reports, keys.minutes, keys.minute_rows]


def passed(bench: Bench) -> list[str]:
    for _ in range(2):  # the first one deletes the stranger's key
        Stats(bench.database).record_pass({"by": "a test"}, {"mail": 3})
    [series] = Minutes(bench.database).series(ONE_MINUTE, [Row(WAITING_JOBS, "mail")]).values()
    assert max(count or 0 for count in series.counts) == 3
    return [bench.keys.stats_rows, bench.keys.minutes, bench.keys.minute_rows]


def lost(bench: Bench) -> list[str]:
    stats = Stats(bench.database)
    stats.record_lost_by_server([Job("", "mail", payload("1"), "1:mail")])
    assert stats.counts().losses.jobs == 1
    return [bench.keys.stats]


def counters(bench: Bench) -> list[str]:
    rows = bench.recoveries.counters([digest(ONE), digest(TWO)])
    assert [row.recoveries for row in rows] == [0, 0]
    return [bench.keys.history(digest(ONE))]


def mark_suspect(bench: Bench) -> list[str]:
    bench.lists.mark_suspect(Job("", "mail", ONE, "1:mail"))
    key = bench.keys.history(digest(ONE))
    assert bench.client.hget(key, "solo_runs") == b"1"
    assert bench.client.ttl(key) > 0, "it is forgotten some day"
    return [key]


ACTS = [heartbeat, quiesce, lock, oldest, count_runs, passed, lost, counters, mark_suspect]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_what_reads_or_writes_notes_goes_on(bench, client, act, wrong):
    """The act itself asserts what it does; it returns the keys of its notes."""
    for key in act(bench):
        client.flushall()
        WRONG[wrong](client, key)
        act(bench)


@pytest.mark.parametrize("act", [heartbeat, lock], ids=lambda act: act.__name__)
def test_control_scripts_that_trust_the_type_of_a_note_end_there(trusting, bench, client, act):
    [key] = act(bench)
    client.flushall()
    client.rpush(key, "an item")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        act(bench)


#: A key of each kind that holds jobs; none of them is a text.
HOLDS_JOBS = ["private:vm|1|aa", "landing:vm|1|aa:mail", "parked:mail", "probation:mail"]


def test_a_key_of_another_type_at_a_place_of_jobs_is_counted_as_one_without_jobs(bench, client):
    """It ended `superfetch rollback` after everything else was moved."""
    owner = bench.owner()
    bench.give(owner.owner, "mail", [ONE])
    before, others = Keyspace(bench.database).left()
    for name in HOLDS_JOBS:
        client.set(f"superfetch:{name}", "a text")

    jobs, more = Keyspace(bench.database).left()

    assert (jobs, more) == (before, others + len(HOLDS_JOBS))
    assert before["private:"] == 1
