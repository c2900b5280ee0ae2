"""The drill's task: anyone who may publish can send it, too, and must not hold slots by it."""

from __future__ import annotations

import pytest

from celery_superfetch.app.drill import sleep_s
from celery_superfetch.model.config import DRILL_MAX_S, DRILL_TASK
from support.waiting import always, eventually

FORGED = 4


@pytest.mark.parametrize("seconds", [1e9, 3601, float("inf")])
def test_a_job_of_the_drill_sleeps_for_an_hour_at_most(seconds):
    assert sleep_s(seconds, True) <= DRILL_MAX_S
    assert sleep_s(seconds, None) == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), "9", None, [], "x", 10**400])
def test_what_makes_no_sense_sleeps_not_at_all(seconds):
    assert 0 <= sleep_s(seconds, True) <= 9


@pytest.mark.parametrize("header", [None, False, 0, 1, "true", [True], {"superfetch_drill": True}])
def test_without_the_command_s_header_it_sleeps_not_at_all(header):
    assert sleep_s(60, header) == 0


def test_a_producer_holds_no_slot_by_the_drill_s_task(worker, app, shop, ledger, db):
    """Two jobs of 10^9 s held both slots of a worker."""
    worker(pool="threads", concurrency=2)
    for _ in range(FORGED):
        app.send_task(DRILL_TASK, (1e9,))
    shop.ran("mine")
    eventually(db.settled)
    assert ledger.runs()["mine"] == 1
    assert not db.dead()


def test_the_control_a_task_that_believes_its_message_holds_them(worker, app, shop, ledger):
    worker(pool="threads", concurrency=2, env={"WITHOUT": "drill_header"})
    for _ in range(FORGED):
        app.send_task(DRILL_TASK, (1e9,))
    app.send_task("shop.note", ("mine",))
    always(lambda: "mine" not in ledger.starts(), during=2)
