"""Jobs of a live owner that lost their pool child, or are no messages at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_superfetch.cut_short import CutShort
from celery_superfetch.facts import Facts
from celery_superfetch.job import Carried, Claimed, digest, parse
from celery_superfetch.recovery import Blame, Counters, Decision, Recovery
from celery_superfetch.signals import LostJob, job_recovering
from parts.bench import Bench, payload


@pytest.fixture
def owner(bench: Bench) -> Facts:
    return bench.owner()


@pytest.fixture
def cut_short(bench: Bench) -> CutShort:
    return CutShort(bench.in_flight)


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


def test_the_record_of_its_start_is_in_before_it_is_removed(
    bench: Bench, owner: Facts, cut_short: CutShort
) -> None:
    """It goes by another connection: what came in late would forbid other starts."""
    sender, on_their_way = object(), []
    in_flight = bench.in_flight
    in_flight.leases.has_slot = lambda: True
    [claimed] = claim(bench, owner, payload(1))
    assert in_flight.hand_over(claimed.job, digest(payload(1)))
    assert in_flight.unread

    def look(recovery: Recovery, **_: object) -> None:
        on_their_way.append(in_flight.unread)

    job_recovering.connect(look, sender=sender)
    cut_short.recover_or_kill(claimed.job, "pool child lost", sender)
    assert on_their_way == [False]
    assert not bench.client.exists(bench.keys.running(owner.owner))


def sent_anew(
    bench: Bench, owner: Facts, cut_short: CutShort, raw: bytes, sender: object = None, **how: Any
) -> Any:
    [claimed] = claim(bench, owner, raw)
    how = {"blame": Blame.EXACT, "settled": False, **how}
    return cut_short.sent_anew(claimed.job, "pool child lost", sender or object(), **how)


def test_what_celery_sends_anew_carries_all_its_strikes(
    bench: Bench, owner: Facts, cut_short: CutShort
) -> None:
    """Those of the messages before, those that were counted since, and the one of now."""
    first = sent_anew(bench, owner, cut_short, payload(1))
    assert first.strikes == 1
    assert first.history[0]["owner"] == owner.owner
    raw = payload(1, **first.headers())
    bench.client.set(bench.keys.recovered, 1)
    at = first.since + 1
    history = json.dumps([{"owner": "h|2|n", "strike": "exact", "at": at}])
    counters = {"strikes": 2, "recoveries": 1, "history": history}
    bench.client.hset(bench.keys.recoveries(digest(raw)), mapping=counters)
    second = sent_anew(bench, owner, cut_short, raw)
    assert (second.strikes, second.since) == (3, first.since)
    owners = [entry["owner"] for entry in second.history]
    assert owners == [owner.owner, "h|2|n", owner.owner]
    assert bench.queue() == [], "Celery sends it"
    assert bench.private(owner) == [raw, payload(1)], "and acks the old one then"


def test_what_celery_sends_anew_carries_no_strike_that_is_nobodys(
    bench: Bench, owner: Facts, cut_short: CutShort
) -> None:
    asked: list[object] = []

    def note(recovery: Recovery, **_: object) -> None:
        asked.append(recovery)

    sender = object()
    job_recovering.connect(note, sender=sender)
    judged = sent_anew(bench, owner, cut_short, payload(1), sender, blame=Blame.NONE)
    assert judged == Carried(since=judged.since)
    assert judged.headers() == {}
    assert not asked


def test_strikes_of_long_ago_are_not_carried(
    bench: Bench, owner: Facts, cut_short: CutShort
) -> None:
    now = bench.client.time()[0]
    old = Carried(2, now - bench.config.strike_window - 1)
    assert sent_anew(bench, owner, cut_short, payload(1, **old.headers())).strikes == 1
    late = Carried(2, now - bench.config.strike_window + 60)
    assert sent_anew(bench, owner, cut_short, payload(2, **late.headers())).strikes == 3


@pytest.mark.parametrize("settled", [False, True])
def test_at_its_last_strike_a_job_is_not_sent_anew(
    bench: Bench, owner: Facts, cut_short: CutShort, settled: bool
) -> None:
    sender = object()

    def kill(recovery: Recovery, **_: object) -> Decision:
        return Decision.KILL if recovery.strikes == 3 else Decision.RECOVER

    job_recovering.connect(kill, sender=sender)
    raw = payload(1, **Carried(2, bench.client.time()[0], ({}, {})).headers())
    judged = sent_anew(bench, owner, cut_short, raw, sender, settled=settled)
    if settled:
        assert judged is None, "nothing is left to move"
        assert not list(bench.dead_set)
        return
    assert (judged.payload, judged.strikes, len(judged.history)) == (raw, 3, 3)
    assert [job.id for job in bench.dead_set] == [judged.id]
    assert bench.private(owner) == bench.queue() == []
    assert len(bench.in_flight) == 0


def test_a_job_that_was_taken_away_is_not_sent_anew(
    bench: Bench, owner: Facts, cut_short: CutShort, lost: list[LostJob]
) -> None:
    [claimed] = claim(bench, owner, payload(1))
    bench.client.delete(bench.keys.private(owner.owner, "mail"))
    for _ in range(2):
        how: dict[str, Any] = {"blame": Blame.EXACT, "settled": False}
        assert cut_short.sent_anew(claimed.job, "pool child lost", object(), **how) is None
    assert lost == [LostJob.of(claimed.job, parse(claimed.job.payload))], "said once"


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
