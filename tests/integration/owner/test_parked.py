"""Jobs that are due later leave their claimer with its next round trip, and are lost nowhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
import redis

from celery_superfetch.model.job import Claimed, digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.store.parked_jobs import EARLY_MS, PARKED_PER_SCRIPT, ParkedJobs
from support.driver import PARK_MIN_S
from support.servers.commands import calls
from support.waiting import eventually
from support.workers.bench import Bench, payload

HOUR = 3_600_000.0  # ms


def claim(bench: Bench, owner: OwnerRecord, *names: object) -> list[Claimed]:
    now = bench.database.server_time()
    bench.driver.server_time_is(now)
    return bench.take(owner, *(payload(name) for name in names))


def park(bench: Bench, *claimed: Claimed, sent: bool = True) -> None:
    """For an hour, one after the other, at once or with the next round trip."""
    now = bench.database.server_time()
    for number, (job, _) in enumerate(claimed):
        assert bench.driver.park(job, now + HOUR + number)
    if sent:
        bench.driver.flush()


def parked(bench: Bench, queue: str = "mail") -> list[bytes]:
    members = bench.client.zrange(bench.keys.parked_of(queue), 0, -1)
    return [member.partition(b"\n")[2] for member in members]


def due(bench: Bench) -> int:
    return bench.parked.release({}, HOUR + 60_000).jobs


def test_a_job_for_later_leaves_with_the_next_round_trip(bench, owner):
    first, second = claim(bench, owner, 1, 2)
    park(bench, first, sent=False)
    assert len(bench.private(owner)) == 2
    bench.driver.claim(owner.owner, ["mail"], 1, 1, [])
    assert bench.private(owner) == [second.job.payload]
    assert parked(bench) == [first.job.payload]
    assert [*bench.driver] == [second.job]
    assert due(bench) == 1
    assert bench.queue() == [first.job.payload]
    assert not bench.client.exists(bench.keys.parked, bench.keys.parked_of("mail"))


def test_two_jobs_of_the_same_bytes_are_parked_as_two(bench, owner):
    park(bench, *claim(bench, owner, 1, 1))
    assert parked(bench) == [payload(1), payload(1)]
    assert due(bench) == 2
    assert bench.queue() == [payload(1), payload(1)]


def test_what_is_due_soon_stays(bench, owner):
    [soon] = claim(bench, owner, 1)
    now = bench.database.server_time()
    assert not bench.driver.park(soon.job, now + PARK_MIN_S * 1000 - 500)
    bench.driver.flush()
    assert (len(bench.private(owner)), parked(bench)) == (1, [])


def test_one_that_was_settled_or_given_back_before_is_not_parked(bench, owner):
    settled, back = claim(bench, owner, 1, 2)
    bench.driver.finish(settled)
    bench.driver.requeue([back.job])
    park(bench, settled, back)
    assert (bench.queue(), bench.private(owner)) == ([payload(2)], [])
    assert parked(bench) == []


def test_one_that_is_being_parked_is_neither_settled_nor_given_back(bench, owner):
    """Its consumer has not begun with it. Whatever comes later finds that it has left."""
    one, two, three = claim(bench, owner, 1, 2, 3)
    park(bench, one, two, three, sent=False)
    bench.driver.finish(one)
    bench.driver.requeue([two.job])
    bench.driver.close([three.job])
    bench.driver.leave()
    bench.driver.flush()
    assert parked(bench) == [payload(1), payload(2), payload(3)]
    assert bench.queue() == bench.private(owner) == [*bench.driver] == []


def test_a_park_whose_reply_was_lost_is_sent_again_and_parks_once(bench, owner):
    [one] = claim(bench, owner, 1)
    park(bench, one, sent=False)
    with bench.driver.lose_reply(), pytest.raises(redis.ConnectionError):
        bench.driver.flush()
    assert one.job in bench.driver
    bench.driver.flush()
    assert parked(bench) == [payload(1)]
    assert bench.private(owner) == [*bench.driver] == []


def test_a_run_that_ends_in_a_park_keeps_its_strikes_and_counts_a_requeue(bench, owner):
    """Its steps note is there for the next run, and the fencing token grows."""
    history = bench.keys.history(digest(payload(1)))
    bench.client.set(bench.keys.has_history, 1)
    bench.client.hset(history, mapping={"strikes": 2, "recoveries": 2})
    [one] = claim(bench, owner, 1)
    bench.driver.deliver(one.job)
    bench.driver.heartbeat_confirmed(owner.owner)
    assert bench.driver.start(one.job)
    bench.client.hset(bench.keys.private(owner.owner), f"s{one.job.claim_id}", "published")
    bench.driver.postpone(one.job, 30)
    bench.driver.flush()
    assert (parked(bench), bench.private(owner), [*bench.driver]) == ([payload(1)], [], [])
    assert due(bench) == 1
    [again] = bench.claim(owner).jobs
    counters = again.counters
    assert (counters.strikes, counters.recoveries, counters.requeues) == (2, 2, 1)
    assert counters.steps == "published"
    assert again.token > one.token
    assert 0 < bench.client.ttl(history) <= bench.config.strike_window


def test_jobs_that_cannot_run_now_return_in_the_order_in_which_they_came(bench, owner):
    jobs = claim(bench, owner, *range(20))
    for claimed in jobs:
        bench.driver.postpone(claimed.job, 1)
    bench.driver.flush()
    bench.push("mail", payload("waits"))
    assert due(bench) == 20
    assert bench.queue() == [*(payload(n) for n in range(20)), payload("waits")]


def test_a_job_that_cannot_run_now_is_refused_a_park_and_waits_for_its_requeue(bench, owner):
    """Without a pause it would be claimed and refused without end."""
    [one] = claim(bench, owner, 1)
    bench.client.set(bench.keys.parked_of("mail"), "a text")
    bench.driver.postpone(one.job, 1)
    bench.driver.flush()
    assert (bench.queue(), bench.private(owner)) == ([], [payload(1)])
    assert not bench.driver.has_unsent, "not in each tick"
    bench.push("mail", payload("waits"))
    bench.driver.retry_requeues_now()
    bench.driver.flush()
    assert (bench.queue(), bench.private(owner)) == ([payload("waits"), payload(1)], [])


def test_jobs_that_the_server_refuses_to_move_are_counted_until_they_are_requeued(bench, owner):
    """The next of the queue is claimed at once: without a limit all would be held in memory. A
    requeue that its queue alone refuses leads to no claim."""
    one, two, three = claim(bench, owner, 1, 2, 3)
    bench.client.set(bench.keys.parked_of("mail"), "a text")
    bench.client.set("mail", "a text")
    bench.driver.requeue([one.job])
    assert bench.driver.refused_count == 0
    bench.driver.postpone(two.job, 1)
    bench.driver.requeue_later(three.job)
    bench.driver.flush()
    assert bench.driver.refused_count == 2
    bench.driver.finish(two)
    assert bench.driver.refused_count == 1
    bench.client.delete("mail")
    bench.driver.retry_requeues_now()
    bench.driver.flush()
    assert bench.driver.refused_count == 0


def test_a_job_that_cannot_run_now_waits_for_as_long_as_it_is_said(bench, owner):
    [one] = claim(bench, owner, 1)
    bench.driver.postpone(one.job, 3600)
    before = bench.database.server_time()
    bench.driver.flush()
    after = bench.database.server_time()
    [(_, due)] = bench.client.zrange(bench.keys.parked_of("mail"), 0, -1, withscores=True)
    assert before <= due - EARLY_MS - HOUR <= after + 1


def questions(bench: Bench) -> int:
    """How often the server was asked for parked jobs that are due."""
    return calls(bench.client, "evalsha", "eval")


@pytest.mark.parametrize("how", ["park", "postpone"])
def test_a_worker_asks_for_what_it_has_parked_when_that_is_due(bench, owner, how):
    began = monotonic()
    later, soon = claim(bench, owner, "later", "soon")
    if how == "park":
        park(bench, later)
    else:
        bench.driver.postpone(later.job, 3600)
        bench.driver.flush()
    before = questions(bench)
    bench.driver.release_due()
    assert questions(bench) == before or monotonic() > began + PARK_MIN_S
    bench.driver.postpone(soon.job, 0)
    bench.driver.flush()
    parked_at = bench.database.server_time()
    eventually(lambda: bench.database.server_time() > parked_at + 1)
    bench.driver.release_due()
    assert bench.queue() == [payload("soon")]
    assert parked(bench) == [payload("later")]


def test_they_go_to_the_front_in_the_order_of_their_time(bench, owner):
    jobs = claim(bench, owner, *range(PARKED_PER_SCRIPT + 50))
    jobs += bench.driver.claim(owner.owner, ["mail"], 100, 1, []).jobs
    park(bench, *jobs)
    bench.push("mail", payload("waits"))
    assert due(bench) == PARKED_PER_SCRIPT + 50
    assert bench.queue() == [*(payload(n) for n in range(PARKED_PER_SCRIPT + 50)), payload("waits")]


def test_of_a_hundred_who_look_at_once_each_job_goes_to_one(bench, url):
    """As a hundred workers do when thousands are due, on a connection each. The server answers
    nobody before all ask."""
    due, later = [payload(n) for n in range(3000)], [payload(f"later {n}") for n in range(500)]
    now, queues, where = bench.database.server_time(), ["mail", "post"], {}
    for jobs, at in ((due, now - 3000), (later, now + HOUR)):
        for n, raw in enumerate(jobs):
            where.setdefault(queues[n % 2], {})[f'"{n}" x-{n}\n'.encode() + raw] = at + n
    for queue, rows in where.items():
        bench.client.zadd(bench.keys.parked_of(queue), rows)
        bench.client.zadd(bench.keys.parked, {queue: min(rows.values())})

    def look(_: int) -> int:
        with redis.Redis.from_url(url) as client:
            return Bench(client).parked.release({}).jobs

    bench.client.client_pause(60_000, all=False)
    with ThreadPoolExecutor(100) as owners:
        looks = owners.map(look, range(100))
        try:
            eventually(lambda: sum("b" in row["flags"] for row in bench.client.client_list()) > 99)
        finally:
            bench.client.client_unpause()
        counts = [*looks]
    assert sum(counts) == len(due)
    assert sum(map(bool, counts)) > 1, "some at the same time"
    assert sorted(bench.queue() + bench.queue("post")) == sorted(due)
    left = parked(bench) + parked(bench, "post")
    assert sorted(left) == sorted(later)


def test_a_suspect_goes_back_on_probation(bench, owner):
    suspect, other = claim(bench, owner, 1, 2)
    bench.client.hset(bench.keys.history(digest(payload(1))), "solo_runs", 1)
    bench.client.set(bench.keys.has_history, 1)
    bench.client.lpush(bench.keys.probation("mail"), payload(3))
    park(bench, suspect, other)
    assert due(bench) == 2
    assert bench.queue() == [payload(2)]
    assert bench.on_probation() == [payload(3), payload(1)], "behind those that wait there"
    assert bench.client.smembers(bench.keys.on_probation) == {b"mail"}


def test_a_queue_that_expires_goes_on_expiring(bench, owner):
    expires = {"mail": 60_000, "others": 90_000}
    for names in (expires, dict(reversed(expires.items()))):
        park(bench, *claim(bench, owner, 1))
        assert bench.parked.release(names, HOUR + 60_000).jobs == 1
        assert 0 < bench.client.pttl("mail") <= 60_000
        bench.client.delete("mail")


def test_a_suspect_that_is_due_leaves_its_queue_as_it_was(bench, owner):
    bench.client.hset(bench.keys.history(digest(payload(1))), "solo_runs", 1)
    bench.client.set(bench.keys.has_history, 1)
    park(bench, *claim(bench, owner, 1))
    bench.push("mail", payload(2))
    assert bench.parked.release({"mail": 60_000}, HOUR + 60_000).jobs == 1
    assert bench.client.pttl("mail") == -1


def test_it_asks_again_only_where_more_is_due(bench, owner):
    park(bench, *claim(bench, owner, 1))
    bench.client.config_resetstat()
    assert due(bench) == 1
    assert calls(bench.client, "evalsha") == 1


def test_a_call_that_comes_behind_its_successor_parks_nothing(bench, owner):
    """A network that stood still brings it when the job went back, and is another claim by now."""
    [claimed] = claim(bench, owner, 1)
    late = bench.parked.park({claimed.job: 1})
    assert bench.run(bench.lists.requeue([claimed.job], "front", 0)) == []
    [again] = bench.claim(owner).jobs
    bench.run(late)
    assert (bench.private(owner), parked(bench)) == ([again.job.payload], [])


def test_the_index_knows_when_the_first_of_a_list_is_due(bench, owner):
    jobs = claim(bench, owner, 1, 2, 3)
    now = bench.database.server_time()
    for claimed, hours in zip(jobs, (2, 1, 3), strict=True):
        assert bench.driver.park(claimed.job, now + hours * HOUR)
        bench.driver.flush()
    assert bench.parked.next_due(["mail"]) == {"mail": int(now + HOUR)}


def test_where_it_cannot_be_parked_it_goes_back_and_is_not_tried_again_at_once(
    bench, owner, caplog
):
    bench.client.set(bench.keys.parked_of("mail"), "something else")
    [claimed] = claim(bench, owner, 1)
    bench.push("mail", payload("waits"))
    park(bench, claimed)
    assert "Jobs could not be scheduled for later (jobs=1, queue=mail): " in caplog.text
    assert "WRONGTYPE Operation against a key" in caplog.text
    assert "may hold it in memory until it is due" in caplog.text
    assert bench.queue() == [payload(1), payload("waits")]
    assert not bench.driver.needs_reconcile, "it is known which job that was"
    again, _ = claim(bench, owner)
    assert not bench.driver.park(again.job, 1e15), "it waits in memory, as in stock"


def test_the_revoked_come_at_once(bench, owner):
    names = ["one", 'a"b\n*[x]', "one more"]
    park(bench, *claim(bench, owner, *names))
    assert bench.parked.make_due(names[:2]) == 2
    assert bench.parked.release({}).jobs == 2
    assert sorted(bench.queue()) == sorted(payload(name) for name in names[:2])
    assert parked(bench) == [payload("one more")]


def test_a_worker_that_recalls_revoked_jobs_asks_for_them_next(bench, owner):
    """And then no more, before the next one is due."""
    park(bench, *claim(bench, owner, "revoked", "other"))
    assert bench.driver.recall(["revoked", "nobody's"]) == 1
    began = monotonic()
    bench.driver.release_due()
    assert bench.queue() == [payload("revoked")]
    before = questions(bench)
    bench.driver.release_due()
    assert questions(bench) == before or monotonic() > began + PARK_MIN_S


def test_what_is_no_message_is_nobodys_loss(bench):
    bench.client.zadd(bench.keys.parked_of("mail"), {b"junk": 1, b"\n": 2, b"a\nb\nc": 3})
    bench.client.zadd(bench.keys.parked, {"mail": 1, "gone": 1})
    assert ParkedJobs(bench.database).release({}).jobs == 3
    assert bench.queue() == [b"junk", b"", b"b\nc"]


def test_many_are_revoked_by_one_look_at_all(bench, owner):
    names = [f"job-{number}" for number in range(90)]
    park(bench, *claim(bench, owner, *names))
    bench.client.config_resetstat()
    assert bench.parked.make_due([*names[:40], "nobody's"]) == 40
    assert 0 < calls(bench.client, "zscan") <= 2, "and not one for each"


def test_a_suspect_with_an_end_of_its_solitude_waits_for_its_time_like_others(bench, owner):
    raw = payload("suspect")
    bench.client.lpush(bench.keys.probation("mail"), raw)
    bench.client.sadd(bench.keys.on_probation, "mail")
    bench.client.hset(bench.keys.history(digest(raw)), "solo_runs", 1)
    bench.client.set(bench.keys.has_history, 1)
    claimed = bench.driver.claim_suspect(owner.owner, "mail")
    assert claimed is not None
    assert bench.driver.solo == claimed.job
    bench.driver.server_time_is(bench.database.server_time())
    park(bench, claimed)
    assert bench.driver.solo is None, "other jobs may now start"
    assert bench.recorded(owner) == []
    assert due(bench) == 1
    assert bench.on_probation() == [raw]
