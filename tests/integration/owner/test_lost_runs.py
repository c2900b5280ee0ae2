"""Jobs of a live owner that lost their pool child, or are no messages at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_superfetch.model.facts import Facts
from celery_superfetch.model.job import Carried, Job, digest
from celery_superfetch.model.strikes import Blame, Counters, Decision, Limits, Recovery
from celery_superfetch.owner.in_flight.lost_runs import LostRuns
from celery_superfetch.signals import LostJob, job_recovering
from support.workers.bench import Bench, lost_job, payload


@pytest.fixture
def cut_short(bench: Bench) -> LostRuns:
    return LostRuns(bench.in_flight)


def test_a_job_that_lost_its_child_is_recovered_and_counted(
    bench: Bench, owner: Facts, cut_short: LostRuns
) -> None:
    [claimed] = bench.take(owner, payload(1))
    assert (
        cut_short.recover_or_kill(claimed.job, "pool child lost", object(), Limits.of(bench.config))
        is None
    )
    assert bench.queue() == [payload(1)]
    counters = bench.counters(payload(1))
    assert (counters.strikes, counters.recoveries) == (1, 1)
    assert len(bench.in_flight.jobs) == 0
    [again] = bench.take(owner)
    assert again.earlier


def test_a_job_that_lost_its_child_is_killed_when_a_receiver_says_so(
    bench: Bench, owner: Facts, cut_short: LostRuns
) -> None:
    sender = object()

    def kill(recovery: Recovery, **_: object) -> Decision:
        return Decision.KILL

    job_recovering.connect(kill, sender=sender)
    [claimed] = bench.take(owner, payload(1))
    dead = cut_short.recover_or_kill(
        claimed.job, "pool child lost", sender, Limits.of(bench.config)
    )
    assert dead is not None
    assert (dead.payload, dead.reason, dead.strikes) == (payload(1), "pool child lost", 1)
    assert [job.id for job in bench.dead_set.find()] == [dead.id]
    assert bench.queue() == bench.private(owner) == []
    assert len(bench.in_flight.jobs) == 0


def test_a_killed_job_is_logged_once_and_with_the_way_back(
    bench: Bench, owner: Facts, cut_short: LostRuns, caplog: pytest.LogCaptureFixture
) -> None:
    sender = object()
    job_recovering.connect(lambda **_: Decision.KILL, sender=sender, weak=False)
    [claimed] = bench.take(owner, payload(1))
    dead = cut_short.recover_or_kill(
        claimed.job, "pool child lost", sender, Limits.of(bench.config)
    )
    assert dead is not None
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{claimed.job.title} was killed after 1 strikes and 1 recoveries" in said
    assert f"dead set as {dead.id}" in said


def test_each_strike_is_a_warning_that_names_the_job(
    bench: Bench, owner: Facts, cut_short: LostRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """E7. Strikes 1 and 2 of a lost child were nameless."""
    for strike, then in ((1, "killed at strike 3"), (2, "on probation")):
        [claimed] = bench.take(owner, payload(1))
        with caplog.at_level("WARNING"):
            cut_short.recover_or_kill(
                claimed.job, "pool child lost", object(), Limits.of(bench.config)
            )
        said = caplog.messages[-1]
        assert said.startswith(f"Job shop.note[1]: strike {strike} of 3; ")
        assert then in said
        assert "pool child lost" in said
        bench.client.delete("mail", bench.keys.probation("mail"))
    before = len(caplog.messages)
    [claimed] = bench.take(owner, payload(2))
    cut_short.recover_or_kill(
        claimed.job, "pool child lost", object(), Limits.of(bench.config), stopping=True
    )
    assert len(caplog.messages) == before, "no strike, no warning"


def test_a_job_that_lost_its_child_and_was_taken_away_is_announced(
    bench: Bench, owner: Facts, cut_short: LostRuns, lost: list[LostJob]
) -> None:
    [claimed] = bench.take(owner, payload(1))
    bench.client.delete(bench.keys.private(owner.owner, "mail"))
    assert (
        cut_short.recover_or_kill(claimed.job, "pool child lost", object(), Limits.of(bench.config))
        is None
    )
    assert lost == [lost_job(claimed.job)]
    assert bench.queue() == []
    assert bench.counters(payload(1)) == Counters()


def test_a_decision_is_taken_anew_when_somebody_else_counted(
    bench: Bench, owner: Facts, cut_short: LostRuns
) -> None:
    """Another process changes the counters between question and answer."""
    sender, asked = object(), []
    [claimed] = bench.take(owner, payload(1))

    def meddle(recovery: Recovery, **_: object) -> None:
        asked.append(recovery.recoveries)
        if len(asked) < 3:
            bench.client.hincrby(bench.keys.recoveries(recovery.digest), "recoveries", 1)

    job_recovering.connect(meddle, sender=sender)
    cut_short.recover_or_kill(claimed.job, "pool child lost", sender, Limits.of(bench.config))
    assert asked == [1, 2, 3]
    assert bench.queue() == [payload(1)]
    assert bench.counters(payload(1)).recoveries == 3


def test_without_end_of_counting_the_job_is_safe_on_its_queue(
    bench: Bench, owner: Facts, cut_short: LostRuns
) -> None:
    sender = object()
    [claimed] = bench.take(owner, payload(1))

    def meddle(recovery: Recovery, **_: object) -> None:
        bench.client.hincrby(bench.keys.recoveries(recovery.digest), "recoveries", 1)

    job_recovering.connect(meddle, sender=sender)
    assert (
        cut_short.recover_or_kill(claimed.job, "pool child lost", sender, Limits.of(bench.config))
        is None
    )
    assert bench.queue() == [payload(1)]
    assert bench.private(owner) == []
    assert len(bench.in_flight.jobs) == 0


def test_the_record_of_its_start_is_in_before_it_is_removed(
    bench: Bench, owner: Facts, cut_short: LostRuns
) -> None:
    """It goes by another connection: what came in late would forbid other starts."""
    sender, on_their_way = object(), []
    in_flight = bench.in_flight
    [claimed] = bench.take(owner, payload(1))
    assert in_flight.start(claimed.job, digest(payload(1)))
    assert in_flight.unread

    def look(recovery: Recovery, **_: object) -> None:
        on_their_way.append(in_flight.unread)

    job_recovering.connect(look, sender=sender)
    cut_short.recover_or_kill(claimed.job, "pool child lost", sender, Limits.of(bench.config))
    assert on_their_way == [False]
    assert not bench.client.exists(bench.keys.running(owner.owner))


def sent_anew(
    bench: Bench, owner: Facts, cut_short: LostRuns, raw: bytes, sender: object = None, **how: Any
) -> Any:
    [claimed] = bench.take(owner, raw)
    how = {"blame": Blame.EXACT, "settled": False, **how}
    return cut_short.sent_anew(
        claimed.job, "pool child lost", sender or object(), Limits.of(bench.config), **how
    )


def test_what_celery_sends_anew_carries_all_its_strikes(
    bench: Bench, owner: Facts, cut_short: LostRuns
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
    bench: Bench, owner: Facts, cut_short: LostRuns
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
    bench: Bench, owner: Facts, cut_short: LostRuns
) -> None:
    now = bench.client.time()[0]
    old = Carried(2, now - bench.config.strike_window - 1)
    assert sent_anew(bench, owner, cut_short, payload(1, **old.headers())).strikes == 1
    late = Carried(2, now - bench.config.strike_window + 60)
    assert sent_anew(bench, owner, cut_short, payload(2, **late.headers())).strikes == 3


@pytest.mark.parametrize("settled", [False, True])
def test_at_its_last_strike_a_job_is_not_sent_anew(
    bench: Bench, owner: Facts, cut_short: LostRuns, settled: bool
) -> None:
    sender = object()

    def kill(recovery: Recovery, **_: object) -> Decision:
        return Decision.KILL if recovery.strikes == 3 else Decision.RECOVER

    job_recovering.connect(kill, sender=sender)
    raw = payload(1, **Carried(2, bench.client.time()[0], ({}, {})).headers())
    judged = sent_anew(bench, owner, cut_short, raw, sender, settled=settled)
    if settled:
        assert judged is None, "nothing is left to move"
        assert not list(bench.dead_set.find())
        return
    assert (judged.payload, judged.strikes, len(judged.history)) == (raw, 3, 3)
    assert [job.id for job in bench.dead_set.find()] == [judged.id]
    assert bench.private(owner) == bench.queue() == []
    assert len(bench.in_flight.jobs) == 0


def spared(bench: Bench, owner: Facts, cut_short: LostRuns, stopping: bool = False) -> Job:
    """A claimed job with three strikes, and perhaps a recovery for which it has none."""
    bench.push("mail", payload(1))
    for last in (False, False, False, *[True] * stopping):
        [claimed] = bench.take(owner)
        assert (
            cut_short.recover_or_kill(
                claimed.job, "lost", object(), Limits.of(bench.config), stopping=last
            )
            is None
        )
        if not bench.queue():
            bench.client.rename(bench.keys.probation("mail"), "mail")
    [claimed] = bench.take(owner)
    assert claimed.earlier is not None
    assert claimed.earlier.strikes == 3
    return claimed.job


@pytest.mark.parametrize("decision", Decision)
def test_who_comes_back_over_its_limit_is_killed_unless_it_is_spared_again(
    bench: Bench, owner: Facts, cut_short: LostRuns, decision: Decision
) -> None:
    """A4: whoever recovered it may have been of another app."""
    sender, seen = object(), []

    def answer(recovery: Recovery, **_: object) -> Decision:
        seen.append(recovery)
        return decision

    job = spared(bench, owner, cut_short)
    job_recovering.connect(answer, sender=sender)
    dead = cut_short.kill_spared(job, sender, Limits.of(bench.config))
    [asked] = seen
    assert (asked.strikes, asked.recoveries, asked.blame) == (3, 3, Blame.EXACT)
    if decision is Decision.RECOVER:
        assert dead is None
        assert job in bench.in_flight.jobs
        return
    assert dead is not None
    assert (dead.reason, dead.strikes, dead.recoveries, len(dead.history)) == ("lost", 3, 3, 3)
    assert [job.record() for job in bench.dead_set.find()] == [dead.record()]
    assert bench.private(owner) == bench.queue() == []


def test_who_comes_back_over_its_limit_by_no_fault_of_its_own_is_spared(
    bench: Bench, owner: Facts, cut_short: LostRuns
) -> None:
    """A4: the last strike has to be its own."""
    job = spared(bench, owner, cut_short, stopping=True)
    sender = object()
    job_recovering.connect(lambda **_: Decision.KILL, sender=sender, weak=False)
    assert cut_short.kill_spared(job, sender, Limits.of(bench.config)) is None
    assert cut_short.kill_spared(job, sender, Limits(lambda _: None, 20)) is None


def test_a_job_that_was_taken_away_is_not_sent_anew(
    bench: Bench, owner: Facts, cut_short: LostRuns, lost: list[LostJob]
) -> None:
    [claimed] = bench.take(owner, payload(1))
    bench.client.delete(bench.keys.private(owner.owner, "mail"))
    for _ in range(2):
        how: dict[str, Any] = {"blame": Blame.EXACT, "settled": False}
        assert (
            cut_short.sent_anew(
                claimed.job, "pool child lost", object(), Limits.of(bench.config), **how
            )
            is None
        )
    assert lost == [lost_job(claimed.job)], "said once"


@pytest.mark.parametrize("raw", [b"no JSON", b"\xff\x00", b""], ids=repr)
def test_what_is_no_message_is_quarantined(
    bench: Bench, owner: Facts, cut_short: LostRuns, raw: bytes
) -> None:
    [claimed] = bench.take(owner, raw)
    cut_short.quarantine(claimed.job)
    [job] = bench.dead_set.find()
    assert (job.payload, job.reason, job.strikes) == (raw, "unparseable payload", 0)
    assert not job.parsed
    assert bench.private(owner) == bench.queue() == []
    assert len(bench.in_flight.jobs) == 0
