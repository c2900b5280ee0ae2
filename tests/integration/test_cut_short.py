"""Jobs of a live owner that lost their pool child, or are no messages at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_superfetch.cut_short import CutShort
from celery_superfetch.facts import Facts
from celery_superfetch.job import Claimed, parse
from celery_superfetch.recovery import Counters, Decision, Recovery
from celery_superfetch.signals import LostJob, job_recovering, ownership_lost
from parts.bench import Bench, payload


@pytest.fixture
def owner(bench: Bench) -> Facts:
    return bench.owner()


@pytest.fixture
def cut_short(bench: Bench) -> CutShort:
    return CutShort(bench.in_flight)


@pytest.fixture
def lost() -> Iterator[list[LostJob]]:
    """Jobs whose loss was announced."""
    jobs: list[LostJob] = []

    def receiver(lost: LostJob, **_: object) -> None:
        jobs.append(lost)

    ownership_lost.connect(receiver)
    yield jobs
    ownership_lost.disconnect(receiver)


def claim(bench: Bench, owner: Facts, *raws: bytes) -> list[Claimed]:
    """Publish and claim by way of `InFlight`."""
    bench.push("mail", *raws)
    return list(bench.in_flight.claim(owner.owner, ["mail"], 100, 1, []).jobs)


def test_a_job_that_lost_its_child_is_recovered_and_counted(
    bench: Bench, owner: Facts, cut_short: CutShort
) -> None:
    [claimed] = claim(bench, owner, payload(1))
    assert cut_short.recover_or_kill(claimed.job, "pool child lost", object()) is None
    assert bench.queue() == [payload(1)]
    counters = bench.counters(payload(1))
    assert (counters.strikes, counters.recoveries) == (1, 1)
    assert len(bench.in_flight) == 0
    [again] = claim(bench, owner)
    assert again.redelivered


def test_a_job_that_lost_its_child_is_killed_when_a_receiver_says_so(
    bench: Bench, owner: Facts, cut_short: CutShort
) -> None:
    sender = object()

    def kill(recovery: Recovery, **_: object) -> Decision:
        return Decision.KILL

    job_recovering.connect(kill, sender=sender)
    [claimed] = claim(bench, owner, payload(1))
    dead = cut_short.recover_or_kill(claimed.job, "pool child lost", sender)
    assert dead is not None
    assert (dead.payload, dead.reason, dead.strikes) == (payload(1), "pool child lost", 1)
    assert [job.id for job in bench.dead_set] == [dead.id]
    assert bench.queue() == bench.private(owner) == []
    assert len(bench.in_flight) == 0


def test_a_job_that_lost_its_child_and_was_taken_away_is_announced(
    bench: Bench, owner: Facts, cut_short: CutShort, lost: list[LostJob]
) -> None:
    [claimed] = claim(bench, owner, payload(1))
    bench.client.delete(bench.keys.private(owner.owner, "mail"))
    assert cut_short.recover_or_kill(claimed.job, "pool child lost", object()) is None
    assert lost == [LostJob.of(claimed.job, parse(claimed.job.payload))]
    assert bench.queue() == []
    assert bench.counters(payload(1)) == Counters()


def test_a_decision_is_taken_anew_when_somebody_else_counted(
    bench: Bench, owner: Facts, cut_short: CutShort
) -> None:
    """Another process changes the counters between question and answer."""
    sender, asked = object(), []
    [claimed] = claim(bench, owner, payload(1))

    def meddle(recovery: Recovery, **_: object) -> None:
        asked.append(recovery.recoveries)
        if len(asked) < 3:
            bench.client.hincrby(bench.keys.recoveries(recovery.digest), "recoveries", 1)

    job_recovering.connect(meddle, sender=sender)
    cut_short.recover_or_kill(claimed.job, "pool child lost", sender)
    assert asked == [1, 2, 3]
    assert bench.queue() == [payload(1)]
    assert bench.counters(payload(1)).recoveries == 3


def test_without_end_of_counting_the_job_is_safe_on_its_queue(
    bench: Bench, owner: Facts, cut_short: CutShort
) -> None:
    sender = object()
    [claimed] = claim(bench, owner, payload(1))

    def meddle(recovery: Recovery, **_: object) -> None:
        bench.client.hincrby(bench.keys.recoveries(recovery.digest), "recoveries", 1)

    job_recovering.connect(meddle, sender=sender)
    assert cut_short.recover_or_kill(claimed.job, "pool child lost", sender) is None
    assert bench.queue() == [payload(1)]
    assert bench.private(owner) == []
    assert len(bench.in_flight) == 0


@pytest.mark.parametrize("raw", [b"no JSON", b"\xff\x00", b""], ids=repr)
def test_what_is_no_message_is_quarantined(
    bench: Bench, owner: Facts, cut_short: CutShort, raw: bytes
) -> None:
    [claimed] = claim(bench, owner, raw)
    cut_short.quarantine(claimed.job)
    [job] = bench.dead_set
    assert (job.payload, job.reason, job.strikes) == (raw, "unparseable payload", 0)
    assert not job.parsed
    assert bench.private(owner) == bench.queue() == []
    assert len(bench.in_flight) == 0
