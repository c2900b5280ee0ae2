"""Jobs that lost their pool child, and that Celery sends anew by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_superfetch.model.facts import Facts
from celery_superfetch.model.job import Carried, Job, digest
from celery_superfetch.model.strikes import Blame, Decision, Limits, Recovery
from celery_superfetch.signals import job_recovering
from support.workers.bench import Bench, lost_job, payload


def sent_anew(bench: Bench, owner: Facts, raw: bytes, sender: object = None, **how: Any) -> Any:
    [claimed] = bench.take(owner, raw)
    return judged(bench, claimed.job, sender, **how)


def judged(bench: Bench, job: Job, sender: object = None, **how: Any) -> Any:
    how = {"blame": Blame.EXACT, "settled": False, **how}
    limits = Limits.of(bench.config)
    return bench.driver.sent_anew(job, "pool child lost", sender or object(), limits, **how)


def test_what_celery_sends_anew_carries_all_its_strikes(bench, owner):
    """Those of the messages before, those that were counted since, and the one of now."""
    first = sent_anew(bench, owner, payload(1))
    assert first.strikes == 1
    assert first.history[0]["owner"] == owner.owner
    raw = payload(1, **first.headers())
    bench.client.set(bench.keys.recovered, 1)
    at = first.since + 1
    history = json.dumps([{"owner": "h|2|n", "strike": "exact", "at": at}])
    counters = {"strikes": 2, "recoveries": 1, "history": history}
    bench.client.hset(bench.keys.recoveries(digest(raw)), mapping=counters)
    second = sent_anew(bench, owner, raw)
    assert (second.strikes, second.since) == (3, first.since)
    owners = [entry["owner"] for entry in second.history]
    assert owners == [owner.owner, "h|2|n", owner.owner]
    assert bench.queue() == [], "Celery sends it"
    assert bench.private(owner) == [raw, payload(1)], "and acks the old one then"


def test_what_celery_sends_anew_carries_no_strike_that_is_nobodys(bench, owner):
    asked: list[object] = []

    def note(recovery: Recovery, **_: object) -> None:
        asked.append(recovery)

    sender = object()
    job_recovering.connect(note, sender=sender)
    judged = sent_anew(bench, owner, payload(1), sender, blame=Blame.NONE)
    assert judged == Carried(since=judged.since)
    assert judged.headers() == {}
    assert not asked


def test_strikes_of_long_ago_are_not_carried(bench, owner):
    now = bench.client.time()[0]
    old = Carried(2, now - bench.config.strike_window - 1)
    assert sent_anew(bench, owner, payload(1, **old.headers())).strikes == 1
    late = Carried(2, now - bench.config.strike_window + 60)
    assert sent_anew(bench, owner, payload(2, **late.headers())).strikes == 3


@pytest.mark.parametrize("settled", [False, True])
def test_at_its_last_strike_a_job_is_not_sent_anew(bench, owner, settled):
    sender = object()

    def kill(recovery: Recovery, **_: object) -> Decision:
        return Decision.KILL if recovery.strikes == 3 else Decision.RECOVER

    job_recovering.connect(kill, sender=sender)
    raw = payload(1, **Carried(2, bench.client.time()[0], ({}, {})).headers())
    judged = sent_anew(bench, owner, raw, sender, settled=settled)
    if settled:
        assert judged is None, "nothing is left to move"
        assert not list(bench.dead_set.find())
        return
    assert (judged.payload, judged.strikes, len(judged.history)) == (raw, 3, 3)
    assert [job.id for job in bench.dead_set.find()] == [judged.id]
    assert bench.private(owner) == bench.queue() == []
    assert len(bench.driver) == 0


def test_a_job_that_was_taken_away_is_not_sent_anew(bench, owner, lost):
    [claimed] = bench.take(owner, payload(1))
    bench.client.delete(bench.keys.private(owner.owner))
    for _ in range(2):
        assert judged(bench, claimed.job) is None
    assert lost == [lost_job(claimed.job)], "said once"
