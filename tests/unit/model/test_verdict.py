"""The table of who is dead, row by row. Nothing is asked here: evidence in, reason out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from celery_superfetch.model.verdict import Evidence, Reason, judge

HEARTBEAT, TTL = 5.0, 60.0
MISSED = 2 * HEARTBEAT  # two of the owner's heartbeats
ELSEWHERE = Evidence(heartbeat_interval=HEARTBEAT, owner_ttl=TTL)
GONE = replace(ELSEWHERE, process=Reason.PROCESS_GONE)
ZOMBIE = replace(ELSEWHERE, process=Reason.PROCESS_ZOMBIE)
REUSED = replace(ELSEWHERE, process=Reason.PID_REUSED)
RUNNING = replace(ELSEWHERE, process=Reason.RUNNING)

DEAD = {
    "its pid is gone": (GONE, Reason.PROCESS_GONE),
    "it is a zombie": (ZOMBIE, Reason.PROCESS_ZOMBIE),
    "its pid has another start time, and it missed two heartbeats": (
        replace(REUSED, staleness_s=MISSED),
        Reason.PID_REUSED,
    ),
    "its pid is gone though it was heard a moment ago": (
        replace(GONE, staleness_s=0.0),
        Reason.PROCESS_GONE,
    ),
    "its pid is gone and it was never watched": (
        replace(GONE, staleness_s=None),
        Reason.PROCESS_GONE,
    ),
    "a zombie keeps its connections until its last thread is gone": (
        replace(ZOMBIE, connected=True),
        Reason.PROCESS_ZOMBIE,
    ),
    "HUP put a newer program into its process": (
        replace(RUNNING, superseded=True),
        Reason.SUPERSEDED,
    ),
    "it runs here, and said that its loop hangs": (replace(RUNNING, hung=True), Reason.HUNG),
    "elsewhere, and it said so with its last heartbeat, a moment ago": (
        replace(ELSEWHERE, hung=True, staleness_s=0.0, connected=True),
        Reason.HUNG,
    ),
    "its pool outlived it for two heartbeats": (
        replace(GONE, pool_left=True, staleness_s=MISSED),
        Reason.PROCESS_GONE,
    ),
    "elsewhere, unconnected and silent for exactly two heartbeats": (
        replace(ELSEWHERE, connected=False, staleness_s=MISSED),
        Reason.DISCONNECTED,
    ),
    "elsewhere, still connected and silent for exactly its ttl": (
        replace(ELSEWHERE, connected=True, staleness_s=TTL),
        Reason.SILENT,
    ),
    "elsewhere, its connections cannot be looked up, silent for its ttl": (
        replace(ELSEWHERE, connected=None, staleness_s=TTL),
        Reason.SILENT,
    ),
}

NOT_DEAD = {
    "elsewhere and heard": (replace(ELSEWHERE, staleness_s=0.0), Reason.HEARD),
    "elsewhere, its heartbeat just begins to stand still": (
        replace(ELSEWHERE, staleness_s=0.01),
        Reason.WATCHED,
    ),
    "elsewhere and never watched, by a fresh observer": (
        replace(ELSEWHERE, staleness_s=None),
        Reason.HEARD,
    ),
    "unconnected, but the observer is fresh": (
        replace(ELSEWHERE, staleness_s=None, connected=False),
        Reason.HEARD,
    ),
    "unconnected, but a reconnect may be under way": (
        replace(ELSEWHERE, staleness_s=MISSED - 0.01, connected=False),
        Reason.WATCHED,
    ),
    "frozen but connected, within its ttl": (
        replace(ELSEWHERE, staleness_s=TTL - 0.01, connected=True),
        Reason.WATCHED,
    ),
    "connections unusable, within its ttl": (
        replace(ELSEWHERE, staleness_s=TTL - 0.01, connected=None),
        Reason.WATCHED,
    ),
    "its process runs here (EPERM counts as running)": (RUNNING, Reason.RUNNING),
    "its process runs here, whatever the server says of its connections": (
        replace(RUNNING, connected=False, staleness_s=0.0),
        Reason.RUNNING,
    ),
    "its pid seems to have another start time, but it is heard": (REUSED, Reason.HEARD),
    "its pid seems to have another start time, a little below two heartbeats": (
        replace(REUSED, staleness_s=MISSED - 0.01, connected=False),
        Reason.WATCHED,
    ),
    "it is frozen on this host, and named so": (
        replace(RUNNING, staleness_s=MISSED),
        Reason.RUNNING_SILENT,
    ),
    "it is frozen on this host, for a hundred times its ttl and without connections": (
        replace(RUNNING, staleness_s=100 * TTL, connected=False),
        Reason.RUNNING_SILENT,
    ),
    "its pool processes outlive it": (replace(GONE, pool_left=True), Reason.POOL_LEFT),
    "its pool processes outlive it, a little below two heartbeats": (
        replace(ZOMBIE, pool_left=True, staleness_s=MISSED - 0.01),
        Reason.POOL_LEFT,
    ),
}


@pytest.mark.parametrize(("evidence", "reason"), DEAD.values(), ids=DEAD)
def test_an_owner_is_dead_when(evidence, reason):
    verdict = judge(evidence)
    assert (verdict, verdict.dead) == (reason, True)


@pytest.mark.parametrize(("evidence", "reason"), NOT_DEAD.values(), ids=NOT_DEAD)
def test_an_owner_is_not_dead_when(evidence, reason):
    verdict = judge(evidence)
    assert (verdict, verdict.dead) == (reason, False)


def test_the_owners_own_settings_are_the_measure():
    slow = Evidence(heartbeat_interval=60.0, owner_ttl=600.0)
    quick = Evidence(heartbeat_interval=0.5, owner_ttl=3.0)
    assert not judge(replace(slow, staleness_s=119.0, connected=False)).dead
    assert judge(replace(slow, staleness_s=120.0, connected=False)).dead
    assert not judge(replace(slow, staleness_s=599.0, connected=True)).dead
    assert judge(replace(quick, staleness_s=1.0, connected=False)).dead
    assert judge(replace(quick, staleness_s=3.0, connected=True)).dead


def test_more_silence_never_brings_an_owner_back_to_life():
    processes = (ELSEWHERE, GONE, ZOMBIE, REUSED, RUNNING)
    for known, connected, pool_left in product(processes, (True, False, None), (False, True)):
        seen = replace(known, connected=connected, pool_left=pool_left)
        spans = (None, 0.0, 1.0, MISSED, TTL, 100 * TTL)
        verdicts = [judge(replace(seen, staleness_s=seconds)).dead for seconds in spans]
        assert verdicts == sorted(verdicts), seen


def test_every_reason_can_be_reached_and_reads_as_a_clause():
    reached = {judge(evidence) for evidence, _ in (DEAD | NOT_DEAD).values()}
    assert reached == set(Reason)
    assert all(reason.value and not reason.value.endswith(".") for reason in Reason)
