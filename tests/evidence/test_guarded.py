"""An application that guards itself against a second run hears of a lost one by a FAILURE: by a
strike limit of 1, and where other jobs ran in the same worker by a receiver."""

from __future__ import annotations

import pytest

from celery_superfetch import PoisonPill
from support.waiting import always, eventually

OPTIONS = {"reap_interval": 1}


@pytest.mark.parametrize("killed", ["pool process", "worker"])
def test_the_first_loss_is_a_failure_at_once(worker, app, ledger, db, killed):
    """The same work without any of it is the control: its second run is told that it runs already,
    and its caller waits. A strike limit of 1 does so, too, where it may not be the job's fault."""
    jobs = ["at_once", "never_again", "by_default"]
    one = worker(app="guarded", concurrency=len(jobs), options=OPTIONS)
    sent = {name: app.signature(f"guarded.{name}", (name,)).apply_async() for name in jobs}
    eventually(lambda: ledger.starts().keys() == {*jobs})
    waits = app.signature("guarded.never_again", ("waits",)).apply_async()
    eventually(lambda: sum(map(len, db.held().values())) == len(jobs) + 1)
    if killed == "worker":
        one.die()
        worker(app="guarded", concurrency=len(jobs), options=OPTIONS)
        failing, running = ["never_again"], ["at_once", "by_default"]
    else:
        for process in one.children():  # those of before the first of them is replaced
            process.kill()
        failing, running = ["at_once", "never_again"], ["by_default"]
    for name in failing:
        with pytest.raises(PoisonPill):
            sent[name].get(timeout=30)
    eventually(lambda: sorted(ledger.told("already running")) == running)
    ledger.release("waits")
    assert waits.get(timeout=30) == "waits", "what had not run does"
    eventually(db.settled)
    always(lambda: {sent[name].state for name in running} == {"PENDING"}, during=0.5)
    assert ledger.runs() == dict.fromkeys([*jobs, "waits"], 1)
    assert sorted(record["task"] for record in db.dead()) == [f"guarded.{name}" for name in failing]


def test_a_worker_that_ran_nothing_else_is_as_good_as_a_pool_process(worker, app, ledger, db):
    one = worker(app="guarded", concurrency=2, options=OPTIONS)
    result = app.signature("guarded.at_once", ("alone",)).apply_async()
    eventually(lambda: ledger.runs() == {"alone": 1})
    one.die()
    worker(app="guarded", concurrency=2, options=OPTIONS)
    with pytest.raises(PoisonPill):
        result.get(timeout=30)
    eventually(db.settled)
    assert ledger.runs() == {"alone": 1}
