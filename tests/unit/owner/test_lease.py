"""The states of a job in its owner: one table, and the docs show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_superfetch.model.job import Job
from celery_superfetch.owner.in_flight.lease import (
    RUNS,
    TRANSITIONS,
    Event,
    Lease,
    Leases,
    State,
)

DOCS = Path(__file__).resolve().parents[3] / "docs" / "contribute" / "architecture.md"
JOB = Job("host|1|nonce", "mail", b"{}", "1")

#: How a job comes into each state.
WAYS = {
    State.FETCHED: [],
    State.DELIVERED: [Event.DELIVER],
    State.RESERVED: [Event.RESERVE],
    State.RUNNING: [Event.RESERVE, Event.START],
    State.DETACHED: [Event.RESERVE, Event.START, Event.CLOSE],
    State.RETURNING: [Event.REQUEUE],
    State.PARKING: [Event.PARK],
    State.SETTLED: [Event.ACK],
    State.GONE: [Event.LEAVE],
}


def table() -> str:
    """The table as Markdown; the event ``LEAVE`` is the same for all."""
    events = [event for event in Event if event is not Event.LEAVE]
    rows = [["State", "The job", *(f"`{event.name}`" for event in events)]]
    rows.append(["---"] * len(rows[0]))
    for state in State:
        after = [TRANSITIONS[event].get(state) for event in events]
        names = [found.name if found else "" for found in after]
        rows.append([f"`{state.name}`", state.value, *names])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def in_state(state: State) -> tuple[Leases, Lease]:
    leases, lease = Leases(), Lease(JOB)
    leases.add(lease)
    for event in WAYS[state]:
        assert leases.apply(lease, event)
    assert lease.state is state
    return leases, lease


def test_the_docs_show_the_table():
    assert table() in DOCS.read_text(), f"put this into {DOCS.name}:\n{table()}"


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_an_event_that_is_not_in_the_table_changes_nothing(state, event):
    leases, lease = in_state(state)
    after = leases.apply(lease, event)
    assert after is TRANSITIONS[event].get(state)
    assert lease.state is (after or state)
    assert (leases.of(JOB) is lease) is (lease.state is not State.GONE)


@pytest.mark.parametrize("state", State)
def test_from_each_state_a_job_can_leave(state):
    leases, lease = in_state(state)
    assert lease.runs == (state in RUNS)
    assert leases.counts[state] == (state is not State.GONE)
    assert sum(leases.counts.values()) == len(leases)
    leases.apply(lease, Event.LEAVE)
    assert (len(leases), leases.of(JOB), sum(leases.counts.values())) == (0, None, 0)
    assert lease.is_gone


@pytest.mark.parametrize(
    "event", [Event.ACK, Event.REQUEUE, Event.PARK, Event.CLOSE, Event.WITHDRAW]
)
@pytest.mark.parametrize("state", RUNS)
def test_a_run_that_ends_without_an_ack_is_known(state, event):
    leases, lease = in_state(state)
    leases.apply(lease, event)
    assert lease.has_run is (event in (Event.REQUEUE, Event.PARK))


def test_two_claims_of_the_same_bytes_are_two_jobs():
    leases, one, other = Leases(), Lease(JOB), Lease(JOB._replace(claim_id="2"))
    leases.add(one)
    leases.add(other)
    leases.solo = other
    leases.apply(one, Event.ACK)
    assert (one.state, other.state) == (State.SETTLED, State.FETCHED)
    assert leases.solo is other
    leases.apply(other, Event.LEAVE)
    assert leases.solo is None
    assert [*leases] == [one]
