"""The states of a job in its owner: one table, and the docs show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_superfetch.model.job import Job
from celery_superfetch.owner.in_flight.jobs import BATCH, MOVES, ROOM, Jobs, Move, State, batches

DOCS = Path(__file__).resolve().parents[3] / "docs" / "contribute" / "architecture.md"
JOB = Job("host|1|nonce", "mail", b"{}", "1")

#: How a job comes into each state.
WAYS = {
    State.CLAIMED: [],
    State.WAITING: [Move.WAIT],
    State.GATHERED: [Move.GATHER],
    State.STARTED: [Move.START],
    State.OUTLIVED: [Move.START, Move.REQUEUE],
    State.RETURNING: [Move.REQUEUE],
    State.SETTLED: [Move.ACK],
}


def table() -> str:
    """The table as Markdown."""
    rows = [["State", "Who has the job", *(f"`{move.name}`" for move in Move)]]
    rows.append(["---"] * len(rows[0]))
    for state in State:
        after = [MOVES[move].get(state) for move in Move]
        names = [found.name if found not in (None, state) else "" for found in after]
        rows.append([f"`{state.name}`", state.value, *names])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def in_state(state: State) -> Jobs:
    jobs = Jobs()
    jobs.add(JOB)
    for move in WAYS[state]:
        jobs.move(JOB, move)
    assert jobs.get(JOB) is state
    return jobs


def test_the_docs_show_the_table():
    assert table() in DOCS.read_text(), f"put this into {DOCS.name}:\n{table()}"


@pytest.mark.parametrize("move", Move)
@pytest.mark.parametrize("state", State)
def test_a_move_that_is_not_in_the_table_changes_nothing(state, move):
    jobs = in_state(state)
    after = jobs.move(JOB, move)
    assert after is MOVES[move].get(state)
    assert jobs.get(JOB) is (after or state)


@pytest.mark.parametrize("state", State)
def test_from_each_state_a_job_can_leave(state):
    jobs = in_state(state)
    assert (jobs.runs(JOB), jobs.counts[State.OUTLIVED]) == (
        state in (State.STARTED, State.OUTLIVED),
        int(state is State.OUTLIVED),
    )
    assert jobs.unsettled == (state is not State.SETTLED)
    jobs.drop(JOB)
    assert (len(jobs), jobs.get(JOB), jobs.unsettled, jobs.counts.total()) == (0, None, False, 0)


def test_two_claims_of_the_same_bytes_are_two_jobs():
    jobs, other = Jobs(), JOB._replace(claim_id="2")
    jobs.add(JOB)
    jobs.add(other)
    jobs.alone = other
    jobs.move(JOB, Move.ACK)
    assert (jobs.get(JOB), jobs.get(other)) == (State.SETTLED, State.CLAIMED)
    assert jobs.alone == other
    jobs.drop(other)
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
