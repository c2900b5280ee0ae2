"""What monitors are sent, and when, on a dispatcher and a receiver of Celery's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.events.state import TASK_EVENT_TO_STATE

from celery_superfetch import PoisonPill
from celery_superfetch.app.events import EVENTS, Monitors
from support.waiting import eventually
from support.workers.bench import Bench
from support.workers.monitor import monitor
from support.workers.worker import Worker


@pytest.fixture
def seen(app: Celery) -> Iterator[list[str]]:
    """The types of what a monitor has received."""
    types: list[str] = []

    def note(event: dict[str, Any]) -> None:
        if event["type"].startswith("task-"):
            TASK_EVENT_TO_STATE[event["type"].removeprefix("task-")]  # as an exporter does
        types.append(event["type"])

    with monitor(app, note):
        yield types


def test_what_is_no_event_of_a_task_is_not_called_one(app: Celery, seen: list[str]) -> None:
    """F6. A monitor that looks up each `task-...` in Celery's table ended its capture."""
    with app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection, groups=["worker"], buffer_group=["task"])
        monitors = Monitors(app)
        monitors.worker = SimpleNamespace(consumer=SimpleNamespace(event_dispatcher=dispatcher))

        eventually(lambda: dispatcher.send("worker-online") or seen, message="somebody listens")

        def sent() -> list[str]:
            seen.clear()
            for type, _ in EVENTS.values():
                monitors.send(type, uuid="1")
            monitors.drain()
            dispatcher.flush()
            dispatcher.send("worker-offline")
            eventually(lambda: "worker-offline" in seen)
            return sorted({*seen} - {"worker-online", "worker-offline"})

        assert sent() == [], "as with those of tasks: nobody asked for them"
        dispatcher.groups.add("task")  # `celery control enable_events`
        assert sent() == sorted(type for type, _ in EVENTS.values())
        dispatcher.groups.discard("task")
        assert sent() == []


def test_a_gevent_worker_announces_a_kill_and_ends_without_an_error(
    worker: Callable[..., Worker], shop: SimpleNamespace, bench: Bench
) -> None:
    """F1. Since 25.4.1 gevent's own `queue.Queue` has no `all_tasks_done`, nor has eventlet's."""
    result = shop.note.delay("a")
    jobs = bench.queue("celery")
    bench.client.delete("celery")
    bench.dead_owner(jobs, "celery", running=jobs, lists=["celery"], app="shop")
    heir = worker(pool="gevent", options={"strike_limit": 1}, args=["-E"])
    with pytest.raises(PoisonPill):
        result.get(timeout=20)
    eventually(lambda: not bench.client.exists(bench.keys.unannounced), message="all of it is told")
    heir.term()
    heir.wait_exit()
    assert "Traceback" not in heir.log()
