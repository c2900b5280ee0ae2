"""A task that does not keep what the settings promise is named at the worker's start."""

from __future__ import annotations

from support.waiting import eventually

OUTDATED = ["early.library", "early.registered"]
CHOSEN = ["early.base", "early.choice", "early.library_by_choice"]
LATE = ["early.late", "early.library_late", "early.shared"]


def test_tasks_that_were_used_before_the_settings_are_named_and_their_jobs_are_lost(
    worker, app, ledger, db
):
    """The other jobs are the control: the same kill, and each of them runs once more."""
    jobs = [*OUTDATED, *CHOSEN, *LATE]
    first = worker(app="early", concurrency=len(jobs))
    sent = {name: app.signature(name, (name,)).apply_async() for name in jobs}
    eventually(lambda: ledger.starts().keys() == {*jobs})
    lines = [line for line in first.log().splitlines() if "Jobs of these tasks" in line]
    assert len(lines) == 3, "each once"
    assert "owner_ttl=90 s" in first.log(), "the settings that came last"
    assert "strike_limit=7" in first.log(), "and what install() was given"
    outdated, dropped, chosen = lines
    assert "WARNING" in outdated
    assert "although task_acks_late is on, so a killed worker loses" in outdated
    assert f"the jobs that it runs: {', '.join(OUTDATED)}. " in outdated
    assert "WARNING" in dropped
    assert "although task_reject_on_worker_lost is on: early.library_late. " in dropped
    assert "INFO" in chosen
    assert "by their own acks_late=False" in chosen
    assert f"the jobs that it runs: {', '.join(CHOSEN)}." in chosen

    first.die()
    second = worker(app="early", concurrency=len(jobs))
    eventually(lambda: all(ledger.runs()[name] == 2 for name in LATE))
    pids = {line["job"]: line["pid"] for line in ledger.lines("started")}
    children = [child.pid for child in second.children()]
    second.kill9_child(children.index(pids["early.library_late"]))
    eventually(lambda: sent["early.library_late"].state == "FAILURE")
    ledger.release()
    eventually(lambda: ledger.finishes().keys() == {"early.late", "early.shared"})
    eventually(db.settled)
    assert ledger.runs() == {**dict.fromkeys(LATE, 2), **dict.fromkeys(OUTDATED + CHOSEN, 1)}


def test_a_task_that_cannot_be_examined_does_not_keep_a_worker_from_starting(worker, app, ledger):
    one = worker(app="early", pool="threads", env={"HOSTILE": "1"})
    one.wait_log("Cannot tell which tasks ack before they run")
    app.signature("shop.note", ("job",)).apply_async()
    eventually(lambda: ledger.runs() == {"job": 1})
