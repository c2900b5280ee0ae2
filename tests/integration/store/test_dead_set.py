"""The dead set: killing keeps the job whole, and a person can put it back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from redis.exceptions import ResponseError

from celery_superfetch.errors import JobNotFound
from celery_superfetch.model.dead_job import DeadJob, Progress
from celery_superfetch.model.job import Counters, digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.strikes import Recovery
from celery_superfetch.store.dead_set import DEAD_BATCH
from support.workers.bench import Bench, payload
from support.workers.orphans import newest, reaped

JOB = payload("id-1")


@pytest.fixture
def owner(bench: Bench) -> OwnerRecord:
    """One that is marked reaped and holds nothing yet."""
    return reaped(bench)


def kill(
    bench: Bench,
    owner: OwnerRecord,
    raw: bytes,
    counters: Counters | None = None,
    marked: bool = True,
    held: bool = True,
) -> tuple[bytes, Recovery]:
    if held:
        bench.give(owner, "mail", [raw])
    recovery = bench.recovery(newest(bench, owner, raw), counters, reason="struck out")
    reply: bytes
    reply, *_ = bench.run(bench.dead_set.kill_call(recovery, marked=marked, notice=b""))
    return reply, recovery


def test_a_killed_job_is_kept_whole(bench, owner):
    counters = bench.keys.history(digest(JOB))
    history = [{"owner": "earlier", "reason": "gone", "strike": 1, "at": 7}]
    bench.client.hset(
        counters, mapping={"strikes": 1, "recoveries": 2, "history": json.dumps(history)}
    )
    reply, recovery = kill(bench, owner, JOB)
    assert reply == b"ok"
    [job] = bench.dead_set.page()
    assert job == replace(DeadJob.of(recovery), died_at=job.died_at)
    assert (job.payload, job.queue_list, job.id) == (JOB, "mail", digest(JOB))
    assert (job.task, job.task_id, job.app_name) == ("shop.note", "id-1", "shop")
    assert (job.strikes, job.recoveries, job.reason) == (2, 3, "struck out")
    assert [entry["owner"] for entry in job.history] == ["earlier", owner.owner]
    assert job.history[-1]["strike"] == recovery.blame.value == "exact"
    assert abs(job.died_at - bench.database.server_time()) < 5000
    assert bench.private(owner) == bench.queue() == []
    assert not bench.client.exists(counters)
    assert bench.stat("killed") == 1


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xfe\x00", b"", "schön".encode(), "\ud800".encode("utf-8", "surrogatepass"), b"\0"],
    ids=repr,
)
def test_any_payload_comes_back_byte_for_byte(bench, raw):
    [job] = bench.killed(raw)
    assert job.payload == raw
    assert json.loads(json.dumps(job.as_dict()))["id"] == digest(raw)
    assert bench.retry(job)
    assert bench.queue() == [raw]


def test_nothing_is_killed_while_the_owner_is_not_marked(bench):
    owner = bench.dead_owner()
    assert kill(bench, owner, JOB)[0] == b"unmarked"
    assert bench.private(owner) == [JOB]
    assert len(bench.dead_set) == 0
    assert kill(bench, owner, JOB, marked=False, held=False)[0] == b"ok", "it asks for its own"


def test_what_somebody_else_moved_is_not_killed(bench, owner):
    assert kill(bench, owner, JOB, held=False)[0] == b"moved"
    assert len(bench.dead_set) == 0
    assert bench.stat("killed") == 0


def test_a_decision_on_old_counters_does_not_hold(bench, owner):
    bench.client.hset(bench.keys.history(digest(JOB)), "recoveries", 2)
    assert kill(bench, owner, JOB, Counters())[0] == b"recounted"
    assert bench.private(owner) == [JOB]
    assert len(bench.dead_set) == 0


def test_a_killed_job_waits_to_be_announced_and_junk_does_not(bench):
    job, _ = bench.killed(JOB, b"junk")
    assert bench.untold() == [job]
    bench.dead_set.announced(job)
    assert bench.untold() == []
    assert len(bench.dead_set) == 2


def test_pages_begin_with_the_newest(bench):
    for n, job in enumerate(bench.killed(*(payload(n) for n in range(7)))):
        bench.die_at(job, 1000 + n)
    ids = [job.task_id for job in bench.dead_set.page(0, 3)]
    ids += [job.task_id for job in bench.dead_set.page(3, 3)]
    assert ids == ["6", "5", "4", "3", "2", "1"]
    assert [job.task_id for job in bench.dead_set.find()] == ["6", "5", "4", "3", "2", "1", "0"]
    assert bench.dead_set.page(7, 3) == []
    assert len(bench.dead_set) == 7


def test_a_job_is_found_by_id_by_its_start_and_by_task_id(bench):
    job, _ = bench.killed(JOB, payload("id-2"))
    assert bench.dead_set.get(job.id) == job
    assert bench.dead_set.get(job.id[:12]) == job
    assert bench.dead_set.get("id-1") == job


def test_an_id_that_fits_several_is_refused_and_names_them(bench):
    jobs = bench.killed(*(payload("same", queue=queue) for queue in ("mail", "slow")))
    with pytest.raises(JobNotFound, match="matches 2 jobs") as caught:
        bench.dead_set.get("same")
    assert all(job.id in str(caught.value) for job in jobs)


@pytest.mark.parametrize("id", ["nobody", "", "0" * 40])
def test_an_id_that_is_not_there_is_refused(bench, id):
    bench.killed(JOB)
    with pytest.raises(JobNotFound, match="superfetch dead list"):
        bench.dead_set.get(id)


def test_the_notice_of_a_death_is_next_in_its_queue_and_names_it(bench, owner):
    bench.push("mail", b"backlog")
    for number, expires in enumerate((0, 60_000)):
        [job] = bench.give(owner, "mail", [payload(number)])
        call = bench.dead_set.kill_call(
            bench.recovery(job), expires, marked=True, notice=b"<@dead_id@ is dead>"
        )
        ok, name, has_notice = bench.run(call)
        assert (ok, has_notice) == (b"ok", 1)
        assert bench.client.rpop("mail") == b"<%b is dead>" % name
        assert name.decode() in {dead.id for dead in bench.untold()}
        assert (bench.client.pttl("mail") > 0) == bool(expires)
    assert bench.queue() == [b"backlog"]


def test_a_retried_job_is_as_new(bench):
    [job] = bench.killed(JOB)
    bench.client.hset(bench.keys.history(job.id), "strikes", 2)
    bench.push("mail", b"backlog")
    assert bench.retry(job)
    assert bench.queue() == [b"backlog", JOB]
    assert bench.counters(JOB) == Counters()
    assert len(bench.dead_set) == 0
    assert bench.untold() == []
    assert bench.stat("retried") == 1
    assert not bench.client.exists(bench.keys.has_history), "there are no counters to look for"


def test_what_a_retried_job_had_handed_on_is_known_to_its_next_run(bench):
    [job] = bench.give("elsewhere|1|nonce", "mail", [payload(1)])
    bench.client.hset(bench.keys.private(job.owner), f"s{job.claim_id}", "handed-on")
    assert bench.run(bench.dead_set.kill_call(bench.recovery(job), marked=False))[0] == b"ok"
    [dead] = bench.dead_set.find()
    assert bench.retry(dead)
    for key in (bench.keys.history(digest(payload(1))), bench.keys.has_history):
        assert 0 < bench.client.ttl(key) <= bench.config.strike_window
    [claimed] = bench.claim(bench.owner()).jobs
    assert claimed.counters.steps == "handed-on"


def test_how_far_an_announcement_came_is_stored_with_its_job(bench):
    """And its bytes are counted: a cap would otherwise drop jobs too late."""
    [job] = bench.killed(JOB)
    assert job.progress == Progress()
    for progress in (Progress(signalled=True, failures=1), Progress(True, True, 2)):
        assert bench.dead_set.store_progress(job, progress)
        [stored] = bench.dead_set.find()
        assert stored == replace(job, progress=progress)
    [kept] = [kept for kept in bench.dead_set.usage() if kept.jobs]
    assert kept.bytes == bench.client.hstrlen(bench.keys.dead_jobs, job.id)


def test_no_progress_is_stored_of_a_job_that_left_or_died_again(bench):
    """Otherwise its record came back without it, or was that of its death before."""
    [job] = bench.killed(JOB)
    assert bench.retry(job)
    assert not bench.dead_set.store_progress(job, Progress(signalled=True))
    assert not bench.client.exists(bench.keys.dead_jobs)
    [again] = bench.killed(JOB)
    assert not bench.dead_set.store_progress(replace(again, notice="other"), Progress(True))
    [stored] = bench.dead_set.find()
    assert stored.progress == Progress()


def test_a_job_is_retried_once(bench):
    [job] = bench.killed(JOB)
    assert [bench.retry(job) for _ in range(3)] == [True, False, False]
    assert bench.queue() == [JOB]


def test_a_job_can_be_retried_on_another_queue(bench):
    [job] = bench.killed(JOB)
    assert bench.retry(job, "slow")
    assert bench.queue("slow") == [JOB]
    assert bench.queue() == []


def test_a_job_cannot_be_retried_on_a_key_of_another_type(bench):
    [job] = bench.killed(JOB)
    bench.client.set("mail", "a text")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        bench.retry(job)
    assert bench.dead_set.get(job.id) == job


def test_deleting_and_purging_count_what_was_there(bench):
    first, *jobs = bench.killed(JOB, *(payload(n) for n in range(250)))
    assert bench.dead_set.delete("nobody") == 0
    assert not bench.client.hexists(bench.keys.stats, "dead_deleted")
    assert bench.dead_set.delete(first.id) == 1
    assert bench.stat("dead_deleted") == 1
    assert bench.dead_set.delete(jobs[0].id, "nobody", jobs[1].id) == 2
    assert bench.dead_set.delete() == 0
    assert bench.dead_set.purge() == 248
    assert bench.stat("dead_deleted") == 251
    left = {name for name in bench.key_names() if name.startswith(bench.keys.dead)}
    assert left == set()


def test_two_items_of_the_same_bytes_are_both_kept(bench):
    """Killing is not losing: the second must not take the place of the first."""
    [first] = bench.killed(JOB)
    [second] = bench.killed(JOB, queue="slow", reason="again")
    assert first.id == digest(JOB)
    assert second.id.startswith(f"{digest(JOB)}-")
    assert [job.id for job in bench.dead_set.find()] == [second.id, first.id]
    assert {job.id for job in bench.untold()} == {first.id, second.id}
    assert bench.dead_set.get(first.id) == first, "a whole id is no start of another"
    with pytest.raises(JobNotFound, match="matches 2 jobs"):
        bench.dead_set.get(first.id[:12])
    assert bench.retry(second)
    assert (bench.queue(), bench.queue("slow")) == ([], [JOB])
    assert bench.retry(first)
    assert bench.queue() == [JOB]


def test_a_retry_clears_the_counters_of_a_second_item_of_the_same_bytes(bench):
    _, second = bench.killed(JOB, JOB)
    bench.client.hset(bench.keys.history(digest(JOB)), "strikes", 2)
    assert bench.retry(second)
    assert bench.counters(JOB) == Counters()


def test_all_are_found_while_others_leave(bench):
    """Page by page, each that leaves would hide another: the control."""
    bench.killed(*(payload(n) for n in range(2 * DEAD_BATCH + 10)))
    seen = []
    for job in bench.dead_set.find():
        seen.append(job.task_id)
        assert bench.dead_set.delete(job.id) == 1
    assert len(set(seen)) == len(seen) == 2 * DEAD_BATCH + 10
    bench.killed(*(payload(n) for n in range(2 * DEAD_BATCH + 10)))
    paged, first = 0, 0
    while page := bench.dead_set.page(first, DEAD_BATCH):
        paged += bench.dead_set.delete(*(job.id for job in page))
        first += DEAD_BATCH
    assert paged < 2 * DEAD_BATCH + 10


def test_a_filter_picks_by_what_is_asked(bench):
    now = bench.database.server_time()
    made = [
        *bench.killed(payload("a"), reason="its process is gone"),
        *bench.killed(payload("b", task="shop.add"), queue="slow"),
        *bench.killed(payload("c"), queue="slow\x06\x163"),
    ]
    for days, job in enumerate(made):
        bench.die_at(job, now - days * 86_400_000 - 5000)

    def found(**conditions: object) -> str:
        names = [job.task_id or "" for job in bench.dead_set.find(**conditions)]
        assert [job.task_id for job in bench.dead_set.page(0, 10, **conditions)] == names
        assert [job.task_id for job in bench.dead_set.page(1, 1, **conditions)] == names[1:2]
        return "".join(names)

    assert found() == "abc"
    assert found(task="shop.note") == "ac"
    assert found(queue="slow") == "bc"
    assert found(reason="process") == "a"
    assert found(older_than=3600) == "bc"
    assert found(newer_than=36 * 3600) == "ab"
    assert found(older_than=3600, newer_than=36 * 3600) == "b"
    assert found(task="shop.note", older_than=3600) == "c"
    assert found(task="nobody's") == ""


def test_a_queue_that_expires_is_renewed(bench):
    known, unknown = bench.killed(payload("known"), payload("unknown"))
    for name in ("mail", "slow"):
        bench.push(name, b"backlog")
        bench.client.pexpire(name, 5000)
    assert bench.retry(known, expires=60_000)
    assert 5000 < bench.client.pttl("mail") <= 60_000
    assert bench.retry(unknown, "slow")
    assert bench.client.pttl("slow") == -1, "better kept than gone in a moment, job and all"
