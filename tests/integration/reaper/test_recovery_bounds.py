"""However many jobs an owner leaves, and however many owners there are, no script does more than
a batch of work."""

from __future__ import annotations

import pytest
import redis

from celery_superfetch.model.job import Job
from celery_superfetch.reaper.drain import DRAIN_BATCH, DRAIN_MAX_BYTES
from support.servers.work import WITHOUT_END, Work, noted
from support.workers.bench import Bench, payload

JOBS = 4 * DRAIN_BATCH + 7

#: Commands for one job between two scripts' ends, at most; and for a script as a whole.
FOR_ONE, FOR_ALL = 8, 25


@pytest.fixture
def bench(own: redis.Redis) -> Bench:
    return Bench(own)


def jobs(count: int, name: str = "job", size: int = 10) -> list[bytes]:
    return [payload(f"{name}-{n}", padding="x" * size) for n in range(count)]


def check(work: Work, batch: int = DRAIN_BATCH) -> None:
    """Fails where one command or script could do more than a batch."""
    since_script, jobs_read = 0, 0
    for command in work.commands:
        # Of each job its history's key, and eight values.
        assert command.number <= 9 * batch + 22, f"{command.name}: {command.number} arguments"
        # A payload is read by its claim's name: by `reap`, or to be moved.
        jobs_read += command.name == "hget" and b":private:" in command.arguments[0]
        if command.name == "evalsha":
            assert since_script <= FOR_ONE * batch + FOR_ALL, f"{since_script} in one script"
            assert jobs_read <= batch + 1, f"{jobs_read} jobs read in one script"
            since_script = jobs_read = 0
        else:
            since_script += 1


def scripts(work: Work) -> int:
    return sum(command.name == "evalsha" for command in work.commands)


def test_a_pass_over_many_jobs_works_in_batches(bench, own):
    raws = jobs(JOBS)
    bench.dead_owner(raws)
    reaper = bench.reaper()
    with noted(own) as work:
        report = reaper.reap()
    assert (report.recovered, report.errors) == (len(raws), 0)
    assert bench.queue() == raws, "in the order of their claims"
    check(work, 2 * DRAIN_BATCH)  # they are looked at, and then moved
    assert scripts(work) <= 3 * (report.recovered / DRAIN_BATCH + 1) + 12
    whole = [command.name for command in work.commands if command.name in WITHOUT_END]
    # The record, what the owner ran, the suspects: none for each batch.
    assert len(whole) <= 10


def test_control_the_look_at_the_work_has_teeth(bench, own, monkeypatch):
    monkeypatch.setattr("celery_superfetch.reaper.drain.DRAIN_BATCH", 100_000)
    bench.dead_owner(jobs(JOBS))
    reaper = bench.reaper()
    with noted(own) as work:
        reaper.reap()
    with pytest.raises(AssertionError):
        check(work, 2 * DRAIN_BATCH)


def test_large_jobs_are_recovered_a_few_at_a_time(bench, own):
    raws = jobs(13, size=DRAIN_MAX_BYTES // 4) + jobs(2, "huge", size=2 * DRAIN_MAX_BYTES)
    bench.dead_owner(raws)
    reaper = bench.reaper()
    with noted(own) as work:
        assert reaper.reap().recovered == 15
    assert bench.queue() == raws
    # Four fit and the fifth, which passes the mark, is not read: the payloads are a bit larger.
    check(work, batch=4)


def test_what_another_reaper_moved_is_asked_for_by_name(bench, own):
    owner = bench.dead_owner(jobs(JOBS))
    assert bench.mark(owner)
    unknown = [
        bench.recovery(Job(owner.owner, "mail", raw, f"f{number:x}:mail"))
        for number, raw in enumerate(jobs(DRAIN_BATCH, "gone"))
    ]
    with noted(own) as work:
        replies = bench.run(bench.recoveries.recover(unknown, 0, marked=True))
    assert set(replies) == {b"moved"}
    assert not {command.name for command in work.commands} & {"hgetall", "hvals", "hscan"}
    check(work)


def test_what_the_owner_holds_and_ran_is_read_once(bench, own):
    """A worker of greenlets may run thousands."""
    raws = jobs(JOBS)
    owner = bench.dead_owner(raws, running=raws)
    reaper = bench.reaper()
    with noted(own) as work:
        assert reaper.reap().recovered == JOBS
    private = bench.keys.private(owner.owner).encode()
    whole = [c.name for c in work.commands if c.name in WITHOUT_END and private in c.arguments]
    # As it is marked, as it is drained, and by who looks whether the tombstone is empty.
    assert whole == ["hkeys"] * len(whole)
    assert len(whole) <= 3
    assert bench.counters(raws[0]).history[0]["strike"] == "suspect"
