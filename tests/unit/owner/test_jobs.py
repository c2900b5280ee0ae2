"""The states of a job in its owner: one table, and the docs show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_superfetch.model.job import Job
from celery_superfetch.owner.in_flight.jobs import (
    BATCH,
    ROOM,
    RUNS,
    TRANSITIONS,
    Event,
    Jobs,
    State,
    batches,
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


def in_state(state: State) -> Jobs:
    jobs = Jobs()
    jobs.add(JOB)
    for event in WAYS[state]:
        assert jobs.apply(JOB, event)
    assert jobs.get(JOB, State.GONE) is state
    return jobs


def test_the_docs_show_the_table():
    assert table() in DOCS.read_text(), f"put this into {DOCS.name}:\n{table()}"


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_an_event_that_is_not_in_the_table_changes_nothing(state, event):
    jobs = in_state(state)
    after = jobs.apply(JOB, event)
    assert after is TRANSITIONS[event].get(state)
    assert jobs.get(JOB, State.GONE) is (after or state)


@pytest.mark.parametrize("state", State)
def test_from_each_state_a_job_can_leave(state):
    jobs = in_state(state)
    assert jobs.runs(JOB) == (state in RUNS)
    assert jobs.counts[state] == (state is not State.GONE)
    assert jobs.unsettled == (state not in (State.SETTLED, State.GONE))
    jobs.apply(JOB, Event.LEAVE)
    assert (len(jobs), jobs.get(JOB), jobs.unsettled, jobs.counts.total()) == (0, None, False, 0)


def test_two_claims_of_the_same_bytes_are_two_jobs():
    jobs, other = Jobs(), JOB._replace(claim_id="2")
    jobs.add(JOB)
    jobs.add(other)
    jobs.alone = other
    jobs.apply(JOB, Event.ACK)
    assert (jobs.get(JOB), jobs.get(other)) == (State.SETTLED, State.FETCHED)
    assert jobs.alone == other
    jobs.apply(other, Event.LEAVE)
    assert jobs.alone is None


@pytest.mark.parametrize(
    ("size", "most"), [(1, BATCH), (ROOM // 4, 4), (2 * ROOM, 1)], ids=["small", "large", "huge"]
)
def test_one_script_moves_so_many_jobs_and_bytes_of_them_in_their_order(size, most):
    payload = b"x" * size
    jobs = [Job("host|1|nonce", "mail", payload, f"{number}:mail") for number in range(2 * most)]
    groups = [*batches(dict.fromkeys(jobs, "front"))]
    assert [len(group) for _, group in groups] == [most, most]
    assert [job for _, group in groups for job in group] == jobs
