"""One pass of the reaper over dead owners: real processes that were killed."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

import pytest
import redis
from celery.utils.dispatch import Signal

from celery_superfetch.model.job import digest
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.model.staleness import StalenessTracker
from celery_superfetch.model.strikes import Blame
from celery_superfetch.model.verdict import Reason
from celery_superfetch.reaper.drain import TITLES_MAX
from celery_superfetch.reaper.report import Report
from celery_superfetch.signals import ReapedOwner, job_recovered, owner_reaped
from support.servers.commands import blocked
from support.waiting import eventually
from support.workers.bench import Bench, image_of, payload


def jobs(count: int, name: str = "job", queue: str = "mail") -> list[bytes]:
    return [payload(f"{name}-{n}", queue) for n in range(count)]


def heard(signal: Signal, sender: object) -> list[dict[str, object]]:
    """What a signal brings from now on, for one sender."""
    calls: list[dict[str, object]] = []
    signal.connect(lambda **kwargs: calls.append(kwargs), sender=sender, weak=False)
    return calls


def test_a_dead_owners_jobs_go_back_in_their_old_order_before_the_backlog(bench):
    orphans = jobs(250)
    owner = bench.dead_owner(orphans)
    bench.push("mail", b"backlog")
    report = bench.reaper().reap()
    assert bench.queue() == [*orphans, b"backlog"]
    assert bench.private(owner) == []
    assert report.dead == {owner.owner: Reason.PROCESS_GONE}
    assert (report.owners, report.recovered, report.killed, report.errors) == (1, 250, 0, 0)
    assert report.seconds > 0
    assert bench.registry.owners() == {}
    assert {bench.counters(raw).strikes for raw in orphans} == {0}, "nothing says that they ran"


def test_every_list_of_the_owner_is_emptied_into_its_own_queue(bench):
    lists = ["mail", "mail\x06\x163", "a:b"]
    owner = bench.dead_owner(lists=lists)
    for name in lists:
        bench.give(owner.owner, name, [name.encode()])
    assert bench.reaper().reap().recovered == 3
    assert [bench.queue(name) for name in lists] == [[name.encode()] for name in lists]


def test_a_live_owner_keeps_everything(bench):
    mine, dead = bench.owner(), bench.dead_owner([payload(2)])
    bench.give(mine.owner, "mail", [payload(1)])
    report = bench.reaper().reap()
    assert set(report.dead) == {dead.owner}
    assert bench.private(mine) == [payload(1)]
    assert set(bench.registry.owners()) == {mine.owner}


def test_a_pass_with_nothing_to_do_does_nothing(bench):
    bench.owner()
    before = bench.key_names()
    report = bench.reaper().reap()
    assert not report.did_something
    assert report.ran
    assert bench.key_names() == before


def test_a_pass_can_be_kept_to_some_owners(bench):
    one, other = bench.dead_owner([payload(1)]), bench.dead_owner([payload(2)])
    report = bench.reaper().reap([one.owner, "nobody|1|x"])
    assert set(report.dead) == {one.owner}
    assert bench.private(other) == [payload(2)]


def test_a_dry_run_judges_and_changes_nothing(bench, client):
    owner = bench.dead_owner(jobs(3))
    bench.give("stranger|1|x", "mail", [b"unknown"])

    def contents() -> dict[str, bytes]:
        return {name: client.dump(name) for name in bench.key_names()}

    before = contents()
    report = bench.reaper().reap(dry_run=True)
    assert report.dead == {owner.owner: Reason.PROCESS_GONE}
    assert report.recovered == 3
    assert "3 jobs would be recovered" in str(report)
    assert contents() == before
    assert bench.reaper().reap().recovered == 3, "the control"


def test_a_hup_leaves_one_owner_and_the_older_is_dead(bench):
    """The same process, executed again: its pid and start time are those of the older owner."""
    image = ProcessImage.current()
    older = bench.owner(replace(image, image="older"))
    bench.give(older.owner, "mail", [payload(1)])
    newer = bench.owner(image)
    report = bench.reaper().reap()
    assert report.dead == {older.owner: Reason.SUPERSEDED}
    assert bench.queue() == [payload(1)]
    assert set(bench.registry.owners()) == {newer.owner}


def test_ones_own_pid_tells_at_once_and_anothers_once_it_is_not_heard(bench):
    """A4. A container comes back with its pids; after a step of a clock it only seems so."""
    before = bench.owner(replace(ProcessImage.current(), start_time="1"))
    parent = bench.owner(replace(image_of(os.getppid()), start_time="1"))
    staleness = StalenessTracker(longest_gap=60)
    reaper = bench.reaper(staleness=staleness)
    assert reaper.reap().dead == {before.owner: Reason.PROCESS_GONE}
    score, now = bench.score(parent), monotonic()
    for ago in (2 * parent.heartbeat_interval, 0):
        staleness.observe({parent.owner: score}, now - ago)
    bench.registry.heartbeat(parent, 0, {})
    assert not reaper.reap().dead, "it was heard"
    bench.client.zadd(bench.keys.owners, {parent.owner: score})
    assert reaper.reap().dead == {parent.owner: Reason.PID_REUSED}


def test_two_reapers_at_once_lose_nothing_and_double_nothing(bench, url):
    orphans = jobs(500)
    owner = bench.dead_owner(orphans)
    benches = [Bench(redis.Redis.from_url(url)) for _ in range(4)]
    start = threading.Barrier(len(benches))

    def reap(own: Bench) -> Report:
        reaper = own.reaper()
        start.wait()
        with own.client:
            return reaper.reap()

    with ThreadPoolExecutor(len(benches)) as threads:
        reports = [*threads.map(reap, benches)]
    assert bench.queue() == orphans, "nothing lost, nothing doubled, the old order"
    assert bench.private(owner) == []
    assert sum(report.recovered for report in reports) == 500
    assert sum(owner.owner in report.dead for report in reports) == 1
    assert {bench.counters(raw).recoveries for raw in orphans} == {1}


def test_a_job_that_lands_while_its_owner_is_drained_is_not_left(bench):
    """A frozen process waits on a list: the first job that comes back there is served to it."""
    orphans = jobs(3)
    owner = bench.dead_owner(orphans)
    landing = bench.keys.landing(owner.owner, "mail")
    frozen = threading.Thread(
        target=lambda: bench.client.blmove("mail", landing, 10, "RIGHT", "LEFT")
    )
    frozen.start()
    eventually(lambda: blocked(bench.client))
    report = bench.reaper().reap()
    frozen.join()
    assert report.recovered >= len(orphans)
    assert bench.queue() == orphans
    assert bench.landed(owner) == []


def test_a_tombstone_is_kept_while_something_has_landed(bench):
    owner = bench.dead_owner()
    bench.reaper().reap()
    bench.client.zadd(bench.keys.reaped, {owner.owner: 1})
    bench.land(owner, "mail", payload(1))
    bench.client.set("mail", "a text")
    bench.reaper().reap()
    assert set(bench.registry.tombstones()) == {owner.owner}
    bench.client.delete("mail")
    assert bench.reaper().reap().recovered == 1
    assert (bench.queue(), bench.registry.tombstones()) == ([payload(1)], {})


def test_what_a_crashed_reaper_left_is_finished_by_the_next(bench):
    """It died right after its mark, and after some of the jobs."""
    orphans = jobs(4)
    owner = bench.dead_owner(orphans, state="stopping")
    bench.mark(owner)
    newest = bench.recovery(bench.held(owner)[0], blame=Blame.NONE)
    bench.run(bench.recoveries.recover([newest], 0, marked=True))
    report = bench.reaper().reap()
    assert report.recovered == 3
    assert bench.queue() == orphans
    assert {bench.counters(raw).strikes for raw in orphans} == {0}, "it was stopping: a deploy"


def test_signals_tell_what_was_done(bench):
    sender = object()
    reaped, recovered = heard(owner_reaped, sender), heard(job_recovered, sender)
    owner = bench.dead_owner(jobs(2))
    bench.reaper(sender=sender).reap()
    [call] = reaped
    assert call["reaped"] == ReapedOwner(
        owner=owner.owner,
        host=owner.process.host,
        pid=owner.process.pid,
        app_name="shop",
        reason=Reason.PROCESS_GONE.value,
        recovered=2,
        killed=0,
    )
    assert {call["recovery"].task_id for call in recovered} == {"job-0", "job-1"}
    assert len(recovered) == 2


def test_what_is_said_of_a_dead_owner_names_its_jobs(bench, caplog):
    """E7. "7 of its jobs were taken back" named none."""
    bench.dead_owner(jobs(2))
    bench.dead_owner(jobs(TITLES_MAX + 3, "many"))
    bench.dead_owner()
    with caplog.at_level("WARNING"):
        bench.reaper().reap()
    said = sorted(message.partition("): ")[2] for message in caplog.messages)
    gone = "its process is gone."
    none, many, two = said
    assert none == f"{gone} 0 jobs recovered."
    assert two == f"{gone} 2 jobs recovered: shop.note[job-1], shop.note[job-0]."
    assert many.endswith(" and 3 more.")
    assert many.count("shop.note[many-") == TITLES_MAX


def test_a_mark_on_an_old_verdict_robs_nobody(bench):
    """Heard between verdict and mark; the control shows what a mark without the score does."""
    mine = bench.owner()
    [claimed] = bench.claimed(mine, payload(1))
    seen = bench.age(mine, 60_000)
    bench.registry.heartbeat(mine, 0, {})
    assert not bench.registry.mark(mine, seen, 60, "silent")
    bench.reaper().reap()
    assert bench.ack(mine, claimed)

    [claimed] = bench.claimed(mine, payload(2))
    assert bench.mark(mine, "silent"), "the control: whatever the score is now"
    bench.reaper().reap()
    assert bench.queue() == [payload(2)], "it runs again,"
    assert not bench.ack(mine, claimed), "though its owner was at it"


def test_the_digest_of_a_job_is_its_name_for_ever(bench):
    """Recovered twice by two dead owners: one history."""
    raw = payload(1)
    bench.push("mail", raw)
    for _ in range(2):
        assert bench.claim(bench.dead_owner(), starts=1).started == 1
        assert bench.reaper().reap().recovered == 1
    counters = bench.counters(raw)
    assert (counters.strikes, counters.recoveries, len(counters.history)) == (2, 2, 2)
    assert bench.client.exists(bench.keys.history(digest(raw)))


@pytest.mark.parametrize("alive", [True, False])
def test_an_owner_of_another_schema_is_named_once(bench, caplog, alive):
    owner = bench.owner() if alive else bench.dead_owner(jobs(2))
    bench.client.hset(bench.keys.owner_record(owner.owner), "schema", "1")
    for _ in range(2):
        bench.reaper().reap()
    said = [message for message in caplog.messages if "registered with data schema 1" in message]
    assert len(said) == 1
    assert f"(owner={owner.owner})" in said[0]
    assert len(bench.queue()) == (0 if alive else 2), "what can be read is recovered"
