"""The task that beat schedules: when it is sent, and what is logged of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import kombu
import pytest
from celery import Celery
from celery.beat import Scheduler

from celery_superfetch.model.config import REAP_ENTRY, REAP_TASK
from celery_superfetch.worker.celerys_logs import add_filters, remove_filters


@pytest.fixture
def due(make_app: Callable[..., Celery]) -> Callable[[], None]:
    """What any of beat's schedulers does when the entry is due."""
    app = make_app()
    scheduler = Scheduler(app, lazy=True)
    entry = scheduler._maybe_entry(REAP_ENTRY, app.conf.beat_schedule[REAP_ENTRY])
    return lambda: scheduler.apply_async(entry, advance=False)


def test_nothing_is_sent_where_there_is_nobody_to_look_at(due, bench):
    """E1. Else a fleet that is scaled by the length of its queue never comes to rest."""
    due()
    assert bench.key_names() == {bench.keys.beats}


def test_one_message_waits_at_most(due, bench, make_app):
    """E1. Where no worker serves its queue, 8,600 a day piled up."""
    bench.owner()
    for _ in range(5):
        due()
    [message] = bench.queue("celery")
    assert json.loads(message)["headers"]["task"] == REAP_TASK
    assert json.loads(message)["headers"]["expires"], "whatever the scheduler keeps of the entry"
    make_app().tasks[REAP_TASK]()
    due()
    assert len(bench.queue("celery")) == 2, "the first has run as far as it knows"


@pytest.mark.parametrize(
    ("accepted", "sent"),
    [
        (["pickle"], "x-python-serialize"),
        (["application/x-yaml", "pickle"], "x-yaml"),
        (["pickle", "json"], "json"),
    ],
)
def test_a_message_is_one_that_the_workers_accept(make_app, bench, accepted, sent):
    bench.owner()
    make_app(conf={"accept_content": accepted}).tasks[REAP_TASK].apply_async()
    [message] = bench.queue("celery")
    assert json.loads(message)["content-type"] == f"application/{sent}"


def named(make_app: Callable[..., Celery], name: str, queue: str) -> Celery:
    app = make_app(conf={"task_default_queue": queue})
    app.main = name
    return app


def test_a_message_that_no_worker_consumes_keeps_back_that_of_no_other_app(make_app, bench):
    """An autoscaler that has stopped all workers of an app starts none without its message."""
    bench.owner()
    for name, queue in (("one", "ones"), ("two", "twos")):
        app = named(make_app, name, queue)
        for _ in range(2):
            app.tasks[REAP_TASK].apply_async()
    assert (len(bench.queue("ones")), len(bench.queue("twos"))) == (1, 1)


def test_a_worker_of_another_app_that_runs_it_lets_the_sender_send_the_next(make_app, bench):
    """If both use one queue."""
    bench.owner()
    one, two = named(make_app, "one", "both"), named(make_app, "two", "both")
    one.tasks[REAP_TASK].apply_async()
    [message] = bench.queue("both")
    task = two.tasks[REAP_TASK]
    task.push_request(**json.loads(message)["headers"])
    try:
        task.run()
    finally:
        task.pop_request()
    one.tasks[REAP_TASK].apply_async()
    assert len(bench.queue("both")) == 2


def test_a_tombstone_is_looked_at_as_well(due, bench):
    """E1. What landed late in the lists of a reaped owner is drained by later passes."""
    bench.dead_owner()
    assert bench.reaper().reap().dead
    assert not bench.registry.owners()
    due()
    assert len(bench.queue("celery")) == 1


def test_what_could_not_be_sent_does_not_wait(make_app, bench, monkeypatch):
    bench.owner()
    task = make_app().tasks[REAP_TASK]

    def fail(*_: object, **__: object) -> None:
        raise OSError("the broker went away")

    with monkeypatch.context() as patch:
        patch.setattr("celery.app.task.Task.apply_async", fail)
        with pytest.raises(OSError, match="went away"):
            task.apply_async()
    task.apply_async()
    assert len(bench.queue("celery")) == 1


def test_without_a_queue_for_it_one_warning_says_so(make_app, bench, caplog):
    """F7. Beat logged an error with a traceback each ten seconds."""
    bench.owner()
    app = make_app()
    app.conf.update(task_create_missing_queues=False, task_queues=[kombu.Queue("mail")])
    for _ in range(3):
        assert app.tasks[REAP_TASK].apply_async() is None
    [record] = [r for r in caplog.records if r.name == "celery_superfetch.app.reap_task"]
    assert record.levelname == "WARNING"
    assert "route the task" in record.getMessage()


def levels_of_lines(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """The levels of two INFO lines of a logger, on the reap task and on another one."""
    caplog.clear()
    for task in (REAP_TASK, "shop.note"):
        logging.getLogger(name).info("Task %(name)s", {"name": task})
    return [record.levelname for record in caplog.records]


def test_celerys_lines_on_it_are_no_info_in_a_worker(caplog):
    """E1. A pass that did something has a line of its own."""
    one, other = Celery(set_as_current=False), Celery(set_as_current=False)
    caplog.set_level(logging.DEBUG, "celery.worker.strategy")
    add_filters(one)
    add_filters(other)
    assert levels_of_lines(caplog, "celery.worker.strategy") == ["DEBUG", "INFO"]
    caplog.set_level(logging.INFO, "celery.worker.strategy")
    assert levels_of_lines(caplog, "celery.worker.strategy") == ["INFO"]
    remove_filters(one)
    assert levels_of_lines(caplog, "celery.worker.strategy") == ["INFO"], "another one runs"
    remove_filters(other)
    assert levels_of_lines(caplog, "celery.worker.strategy") == ["INFO", "INFO"]


def test_celerys_lines_on_it_are_no_info_in_a_beat(due, caplog):
    due()
    caplog.set_level(logging.DEBUG, "celery.beat")
    assert levels_of_lines(caplog, "celery.beat") == ["DEBUG", "INFO"]
