"""The soak: everything goes wrong, one thing after the other, and no job is lost.

Ten minutes of it: `pytest tests/evidence/test_soak.py --minutes=10 --seed=7 -s`. It prints its seed
and its report; a job that ran twice has to have a reason in the log of faults.
"""

from __future__ import annotations

import random

import pytest

from support.servers.database import Database
from support.workers.runs import Harm, Standstill, report
from support.workers.soak import Soak


@pytest.mark.netns
@pytest.mark.timeout(0)
def test_the_soak_loses_nothing_and_explains_what_ran_twice(
    request, server, ledger, remember, tmp_path
):
    seed = request.config.getoption("--seed")
    seed = random.randrange(1_000_000) if seed is None else seed
    minutes = request.config.getoption("--minutes")
    print(f"soak: --seed={seed} --minutes={minutes:g}")
    with Soak(server.url(), ledger, tmp_path, seed, remember) as soak:
        found = soak.run(minutes * 60)
        print(dict(soak.history))
        print(found)
        assert found.good, f"seed {seed}\n{found}"
        left: Database = soak.db
        assert not left.dead()
        assert not left.length()
        assert not left.held()


# -- the report itself


def line(event: str, job: str, at: float, worker: str = "w1", pid: int = 1) -> dict[str, object]:
    return {"event": event, "job": job, "message": "m", "at": at, "worker": worker, "pid": pid}


def test_a_job_that_did_not_finish_is_lost():
    found = report(["a", "b"], [line("started", "a", 1)], [])
    assert found.lost == ["a", "b"]


def test_a_second_run_needs_a_reason():
    lines = [
        line("started", "a", 1),
        line("started", "a", 20, "w2"),
        line("finished", "a", 21, "w2"),
    ]
    assert not report(["a"], lines, []).good
    killed = Harm("kill -9", frozenset({"w1"}), 10, 10)
    assert report(["a"], lines, [killed]).explained == ["a: 2 runs (kill -9 of w1)"]
    for other in (
        Harm("kill -9", frozenset({"w2"}), 10, 10),
        Harm("kill -9", frozenset({"w1"}), 0, 0.5),
        Harm("child", frozenset({"w1"}), 10, 10, pid=2),
    ):
        assert not report(["a"], lines, [other]).good


def test_a_run_that_begins_as_its_worker_thaws_began_before_the_freeze():
    """Its worker was declared dead meanwhile, and the job has run elsewhere."""
    froze = Harm("freeze", frozenset({"w1"}), 1, 20)
    elsewhere = [line("started", "a", 12, "w2"), line("finished", "a", 13, "w2")]
    for began, good in ((20.01, True), (20.1, False)):
        late = [line("started", "a", began), line("finished", "a", began + 1)]
        assert report(["a"], elsewhere + late, [froze]).good is good


def test_a_run_that_was_over_and_settled_is_no_reason():
    lines = [
        line("started", "a", 1),
        line("finished", "a", 2),
        line("started", "a", 40, "w2"),
        line("finished", "a", 41, "w2"),
    ]
    late = Harm("kill -9", frozenset({"w1"}), 30, 30)
    assert not report(["a"], lines, [late]).good
    # What does not count is when the server answered nobody.
    for standstill, settled in (
        ((1.5, 20), False),
        ((2.5, 20), False),
        ((1.5, 14), True),
        ((31, 60), True),
    ):
        assert report(["a"], lines, [late], [Standstill(*standstill)]).good is not settled


def test_a_run_whose_retry_could_not_be_sent_is_no_second_run():
    lines = [line("started", "a", 1), line("retried", "a", 2)]
    again = [line("started", "a", 3, "w2"), line("finished", "a", 4, "w2")]
    assert not report(["a"], lines + again, []).good
    assert report(["a"], [*lines, line("rejected", "a", 2.5), *again], []).good


def test_a_requeue_on_purpose_is_no_second_run():
    lines = [
        line("started", "a", 1),
        line("rejected", "a", 2),
        line("started", "a", 3),
        line("finished", "a", 4),
    ]
    found = report(["a"], lines, [])
    assert found.good
    assert not found.explained
