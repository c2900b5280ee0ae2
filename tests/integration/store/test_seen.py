"""What those who look are told: what owners hold, what waits since when, and who has died."""

from __future__ import annotations

from itertools import chain
from math import inf
from time import monotonic, sleep
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Queue
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_superfetch.app.reaper import record_pass
from celery_superfetch.store import queues
from celery_superfetch.store.in_flight_jobs import (
    OWNERS_PER_SCRIPT,
    PARKED,
    PLACES_PER_SCRIPT,
    PROBATION,
    RESERVED,
    InFlightCounts,
    InFlightJobs,
    JobPlace,
    SeenJob,
)
from celery_superfetch.store.private_lists import STEPS
from celery_superfetch.store.queues import Queues
from celery_superfetch.store.stats import DEATHS_MAX, Stats
from support.servers.commands import calls
from support.waiting import eventually
from support.workers.bench import Bench, payload

ONE, TWO, THREE = payload("1"), payload("2"), payload("3")


def nothing() -> None:
    """A task."""


def test_what_an_owner_holds_is_told_apart(bench):
    owner, idle = bench.owner(), bench.owner()
    bench.push("mail", ONE, TWO)
    bench.claim(owner, starts=1)
    bench.claimed(owner, THREE)
    found = InFlightJobs(bench.database).counts([owner.owner, idle.owner, "nobody|1|x"])
    assert found == {
        owner.owner: InFlightCounts(running=1, reserved=2),
        idle.owner: InFlightCounts(),
        "nobody|1|x": InFlightCounts(),
    }


def test_many_owners_are_counted_by_a_few_scripts(bench):
    owners = [bench.owner().owner for _ in range(OWNERS_PER_SCRIPT + 1)]
    bench.give(owners[-1], "mail", [ONE])
    before = calls(bench.client, "evalsha")
    found = InFlightJobs(bench.database).counts(owners)
    assert calls(bench.client, "evalsha") == before + 2
    assert found[owners[-1]].reserved == 1


@pytest.mark.parametrize("place", [RESERVED, PARKED, PROBATION])
def test_a_look_ends_although_what_it_looked_at_has_gone(bench, place):
    """All the rest was acked between two pages: its script turned until somebody killed it, and
    nobody else was served."""
    owner, last = bench.owner().owner, bench.owner().owner
    places = [JobPlace(place, owner, "" if place == RESERVED else "mail"), JobPlace(RESERVED, last)]
    bench.give(last, "mail", [ONE])
    key = {
        RESERVED: bench.keys.private(owner),
        PARKED: bench.keys.parked_of("mail"),
        PROBATION: bench.keys.probation("mail"),
    }[place]
    jobs = {str(number): payload(number) for number in range(4 * PLACES_PER_SCRIPT)}
    if place == PARKED:
        bench.client.zadd(key, {raw: number for number, raw in enumerate(jobs.values())})
    elif place == RESERVED:
        bench.client.hset(key, mapping={f"{n}:mail": raw for n, raw in jobs.items()})
    else:
        bench.client.rpush(key, *jobs.values())
    pages = InFlightJobs(bench.database).jobs(places, len(jobs))
    assert next(pages), "there is more"
    bench.client.delete(key)
    assert [found.payload for some in pages for found in some] == [ONE]


def test_a_look_shows_what_runs_then_the_oldest_claims_and_what_landed(bench, owner):
    one, two, three = bench.give(owner, "mail", [ONE, TWO, THREE])
    bench.run_one(two)
    bench.land(owner, "mail", b"landed")
    mine, landing = JobPlace(RESERVED, owner.owner), JobPlace(RESERVED, owner.owner, "mail")
    order = [(mine, two, True), (mine, one, False), (mine, three, False)]
    expected = [SeenJob(place, job.payload, job.claim_id, runs) for place, job, runs in order]
    pages = InFlightJobs(bench.database).jobs([mine, landing], 100)
    assert [*chain(*pages)] == [*expected, SeenJob(landing, b"landed")]


def test_what_landed_is_in_flight_and_begins_with_nobody(bench):
    """A record without its claim is no job: none is counted for it."""
    owner = bench.owner(lists=["mail", "slow"])
    [job] = bench.give(owner, "mail", [ONE])
    bench.run_one(job)
    bench.land(owner, "slow", TWO, THREE)
    bench.run_one(job._replace(claim_id="ff:mail"))
    found = InFlightJobs(bench.database).counts([owner.owner])[owner.owner]
    assert dict(found.lists) == {"mail": 1, "slow": 2}
    assert found.in_flight == 3


def test_a_note_is_no_job_and_an_empty_list_no_row(bench):
    owner = bench.owner(lists=["mail"])
    [job] = bench.give(owner, "mail", [ONE])
    bench.client.hset(bench.keys.private(owner.owner), STEPS + job.claim_id, ",one")
    look = InFlightJobs(bench.database)
    assert dict(look.counts([owner.owner])[owner.owner].lists) == {"mail": 1}
    bench.client.hset(bench.keys.private("odd|1|x"), "odd", "by hand")
    assert dict(look.counts(["odd|1|x"])["odd|1|x"].lists) == {"odd": 1}
    bench.land(owner, "mail", TWO)
    assert dict(look.counts([owner.owner])[owner.owner].lists) == {"mail": 2}, "its only list"
    more = bench.owner(lists=["mail", "slow", "broken"])
    bench.client.config_resetstat()
    assert dict(look.counts([more.owner])[more.owner].lists) == {}
    assert not calls(bench.client, "llen"), "one question tells"
    bench.land(more, "slow", TWO)
    bench.client.set(bench.keys.landing(more.owner, "broken"), "a text")
    assert dict(look.counts([more.owner])[more.owner].lists) == {"slow": 1}


def pages(bench: Bench, *keys: str, most: int, room: int, page: int, at: str = "0") -> list[Any]:
    """One script: where each read's next begins, and the payloads' numbers."""
    rows = bench.scripts.run("pages", keys, [most, room, page, at])
    return [(int(cursor), [int(raw.strip(b"x")) for raw in raws]) for cursor, raws in rows]


def test_a_look_reads_until_it_is_enough(bench):
    """Ten bytes a job, in a list and among parked jobs; each comes once, in the order of turns."""
    jobs = [b"%010d" % number for number in range(7)]
    bench.push("list", *jobs)
    bench.client.zadd("parked", {f"id\n{raw.decode()}": n for n, raw in enumerate(jobs)})
    for key in ("list", "parked"):
        whole = [(3, [0, 1, 2]), (6, [3, 4, 5]), (0, [6])]
        assert pages(bench, key, most=9, room=999, page=3) == whole
        assert pages(bench, key, most=3, room=999, page=3) == whole[:1]
        assert pages(bench, key, most=4, room=999, page=3) == whole[:2]
        assert pages(bench, key, most=9, room=30, page=3) == whole[:1]
        assert pages(bench, key, most=9, room=31, page=3) == whole[:2]
        assert pages(bench, key, most=9, room=999, page=3, at="6") == whole[2:]
        assert pages(bench, key, most=9, room=999, page=7) == [(7, [*range(7)]), (0, [])]
    both = [(0, [*range(7)])] * 2
    assert pages(bench, "list", "parked", most=14, room=999, page=9) == both
    assert pages(bench, "list", "parked", most=7, room=999, page=9) == both[:1]
    bench.client.zadd("no id", {"5xxxxxxxxx": 1})
    assert pages(bench, "gone", "no id", most=9, room=999, page=9) == [(0, []), (0, [5])]


@pytest.mark.parametrize("lists", ["{", "[]", "7", '"mail"'])
def test_facts_that_cannot_be_read_hold_up_nobody(bench, lists):
    broken, whole = bench.owner(), bench.owner()
    bench.give(whole.owner, "mail", [ONE])
    bench.client.hset(bench.keys.owner_record(broken.owner), "lists", lists)
    found = InFlightJobs(bench.database).counts([broken.owner, whole.owner])
    assert [found[o.owner].in_flight for o in (broken, whole)] == [0, 1]


def test_jobs_that_came_after_the_last_worker_left_have_an_age(bench):
    """Who looks forgets them on request alone."""
    assert bench.registry.leave(bench.owner(lists=["aside", "idle"]), 0) == 0
    bench.owner(lists=["mail"])
    bench.push("aside", payload("late"))
    reaper = bench.reaper()
    record_pass(reaper, reaper.reap())
    assert set(Queues(bench.database).oldest(["aside", "idle", "mail"])) == {"aside"}
    assert bench.registry.forget_served(["aside"]) == 1
    record_pass(reaper, reaper.reap())
    assert not Queues(bench.database).oldest(["aside"]), "control: nothing names it any more"


@pytest.mark.parametrize(("room", "count"), [(0, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_a_script_looks_at_queues_until_it_has_read_so_many_bytes(bench, room, count):
    for name in ("a", "b", "c"):
        bench.push(name, b"123")
    times, _ = bench.scripts.run("oldest", [bench.keys.oldest], ["", 1, room, "a", "b", "c"])
    assert len(times) == 1 + count


def test_notes_of_the_oldest_jobs_expire(bench):
    bench.push("mail", b"1")
    Queues(bench.database).oldest(["mail"], notes=True)
    assert 0 < bench.client.ttl(bench.keys.oldest) <= 86400


def test_the_oldest_job_of_a_queue_grows_old_while_it_is_the_next(bench):
    oldest = Queues(bench.database).oldest
    bench.push("mail", ONE, TWO)
    assert oldest(["mail"]) == {}, "nobody has noted it"
    assert bench.client.exists(bench.keys.oldest) == 0, "and who only looks does not"
    before = bench.database.server_time()
    bench.client.config_resetstat()
    assert set(oldest(["mail", "empty"], notes=True)) == {"mail"}
    assert calls(bench.client, "lindex") == 2, "once in each list"
    eventually(lambda: oldest(["mail"])["mail"] > 0.05)
    age = oldest(["mail"])["mail"] * 1000
    assert age <= bench.database.server_time() - before
    assert 0 < bench.client.ttl(bench.keys.oldest) <= 86_400
    bench.client.rpop("mail")
    assert oldest(["mail"]) == {}, "another job is the next"
    assert oldest(["mail"], notes=True)["mail"] == 0
    bench.client.delete("mail")
    assert oldest(["mail"]) == {}
    assert bench.client.hkeys(bench.keys.oldest) == [b"mail"], "who only looks forgets nothing"
    oldest(["mail"], notes=True)
    assert bench.client.exists(bench.keys.oldest) == 0


def test_a_pass_looks_once_at_each_list_however_many_there_are(bench):
    """It looked at all that are noted once more for each hundred that somebody serves: at two
    thousand lists forty thousand times."""
    served = [f"served-{number}" for number in range(3 * queues.LISTS_PER_SCRIPT)]
    others = [f"other-{number}" for number in range(2 * queues.LISTS_PER_SCRIPT)]
    for name in (*served, *others):
        bench.push(name, ONE)
    Queues(bench.database).add_notes(others)
    bench.owner(lists=served)
    reaper = bench.reaper()
    report = reaper.reap()
    before, seconds = calls(bench.client, "lindex"), report.seconds
    record_pass(reaper, report)
    assert calls(bench.client, "lindex") - before == len(served) + len(others)
    assert bench.client.hlen(bench.keys.oldest) == len(served) + len(others)
    assert report.seconds > seconds, "it is a part of the pass"
    assert Stats(bench.database).last_pass()["seconds"] == str(round(report.seconds, 3))


@pytest.mark.parametrize(("served", "scripts"), [([], 2), (["mail"], 2), (["mail", "aside"], 1)])
def test_a_pass_asks_by_a_command_more_only_for_lists_that_it_does_not_know(bench, served, scripts):
    """It asked which lists have a note, before it looked at any."""
    for name in ("mail", "aside"):
        bench.push(name, ONE)
    Queues(bench.database).add_notes(["aside"])
    before = calls(bench.client, "evalsha")
    Queues(bench.database).note_waiting(served)
    assert calls(bench.client, "evalsha") - before == scripts
    assert set(bench.client.hkeys(bench.keys.oldest)) == {b"aside", *(n.encode() for n in served)}


def test_one_script_reads_so_many_bytes_of_the_oldest_jobs(bench):
    names = [f"queue-{number}" for number in range(12)]
    for name in names:
        bench.push(name, b"x" * (queues.MESSAGES_MAX_BYTES // 4))
    before = calls(bench.client, "evalsha")
    assert Queues(bench.database).oldest(names, notes=True).keys() == set(names)
    assert calls(bench.client, "evalsha") - before == 3


def test_what_waits_where_nobody_consumes_is_noted_too(bench):
    app = Celery("shop", set_as_current=False)
    app.conf.task_queues = [Queue("mail"), Queue("late")]
    bench.push("late\x06\x166", ONE)
    reaper = bench.reaper(sender=app)
    record_pass(reaper, reaper.reap())
    assert bench.client.hkeys(bench.keys.oldest) == [b"late\x06\x166"]


def test_a_queue_that_only_a_task_a_route_or_beat_names_is_noted_too(bench):
    app = Celery("shop", set_as_current=False)
    for task, queue in ("shop.send", "mail"), ("shop.scan", Queue("scans")):
        app.task(name=task, queue=queue, shared=False)(nothing)
    exact = {"shop.charge": {"queue": "money"}, "shop.*": "rest"}
    app.conf.task_routes = [exact, lambda *_: {"queue": "unknown"}]
    app.conf.beat_schedule = {"n": {"task": "t", "schedule": 1, "options": {"queue": "nightly"}}}
    named = {"mail", "scans", "money", "rest", "nightly"}
    for name in {*named, "unknown"}:
        bench.push(name, ONE)
    reaper = bench.reaper(sender=app)
    record_pass(reaper, reaper.reap())
    assert {name.decode() for name in bench.client.hkeys(bench.keys.oldest)} == named


def test_a_key_of_another_type_is_no_queue(bench):
    bench.client.set("mail", "not a list")
    assert Queues(bench.database).oldest(["mail"], notes=True) == {}


def test_a_death_is_remembered_with_what_became_of_its_jobs(bench):
    owner = bench.dead_owner([ONE, TWO], node="mail@host")
    bench.reaper().reap()
    [death] = Stats(bench.database).deaths()
    assert (death["owner"], death["node"], death["recovered"]) == (owner.owner, "mail@host", 2)
    assert death["reason"] == "its process is gone"
    assert death["last_heartbeat"] <= death["at"]


def test_deaths_are_capped(bench):
    stats = Stats(bench.database)
    bench.client.zadd(bench.keys.deaths, {f'{{"owner": "{n}"}}': n + 1 for n in range(3)})
    stats.record_deaths([(monotonic(), {"owner": "new"})])
    assert [death["owner"] for death in stats.deaths()] == ["new"], "the others are too old"
    before = bench.database.server_time() - 1000
    bench.client.zadd(bench.keys.deaths, {f'{{"owner": "{n}"}}': before for n in range(DEATHS_MAX)})
    stats.record_deaths([(monotonic(), {"owner": "newest"})])
    assert bench.client.zcard(bench.keys.deaths) == DEATHS_MAX
    assert stats.deaths(1)[0]["owner"] == "newest"


@pytest.mark.parametrize("trouble", ["", "reply lost", "stats of another type"])
def test_a_death_that_is_recorded_again_is_one_death(client, proxy, trouble):
    """Each try gave it another time: it was another row, and its recovery was counted again."""
    there = client.connection_pool.connection_kwargs["db"]
    bench = Bench(redis.Redis(port=proxy.port, db=there, retry=Retry(NoBackoff(), 0)))
    reaper = bench.reaper()
    if trouble == "reply lost":
        cut = proxy.cut_at(lambda words: words[0] == b"EXEC", reply_lost=True)
    elif trouble:
        bench.client.set(bench.keys.stats, "a text")
    bench.dead_owner([ONE])
    assert reaper.reap().errors == bool(trouble)
    assert len(reaper.deaths) == bool(trouble)
    sleep(0.01)
    assert reaper.reap().errors == 0
    assert (len(bench.stats.deaths()), len(reaper.deaths)) == (1, 0)
    if trouble == "reply lost":
        assert cut.is_set()
    if trouble != "stats of another type":
        assert bench.stats.counts().recoveries.buckets[inf] == 1


def test_a_pass_is_remembered_with_who_made_it(bench, owner):
    stats = Stats(bench.database)
    assert stats.last_pass() == {}
    bench.push("mail", ONE)
    reaper = bench.reaper()
    record_pass(reaper, reaper.reap())
    told = stats.last_pass()
    assert (told["owners"], told["errors"]) == ("1", "0")
    assert told["by"].endswith(f"pid {owner.process.pid}")
    assert bench.client.hkeys(bench.keys.oldest) == [b"mail"]
    assert 0 < bench.client.ttl(bench.keys.last_pass) <= 7 * 86_400
    bench.client.rpop("mail")
    bench.client.hset(bench.keys.owner_record(owner.owner), "lists", "{}")
    record_pass(reaper, reaper.reap())
    assert bench.client.exists(bench.keys.oldest) == 0, "also of lists that nobody serves any more"
