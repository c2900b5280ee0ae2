"""A task class that runs the calls of several messages as one, and acks them all afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery import Task
from celery.worker.request import create_request_cls

#: A batch is run when it has this many calls, or this many seconds after the last one was run.
SIZE, SECONDS = 4, 0.3


class Batches(Task):  # type: ignore[misc]
    """Its messages stay with the consumer, unacked, beyond the one that brings the next."""

    abstract = True

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Callable[..., None]:
        """Celery calls this once for each consumer; what it returns gets every message."""
        make = create_request_cls(
            _class(task.Request), task, consumer.pool, consumer.hostname, None, app=app
        )
        waiting: list[Any] = []

        def flush() -> None:
            requests, waiting[:] = list(waiting), []
            if not requests:
                return

            def ack(_: Any) -> None:
                for request in requests:
                    request.acknowledge()

            names = [request.args[0] for request in requests]
            consumer.pool.apply_async(run, (app.main, task.name, names), callback=ack)

        def on_message(
            message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **_: Any
        ) -> None:
            waiting.append(
                make(
                    message,
                    on_ack=ack,
                    on_reject=reject,
                    app=app,
                    hostname=consumer.hostname,
                    task=task,
                    connection_errors=consumer.connection_errors,
                    headers=message.headers,
                    body=message.body,
                    decoded=False,
                )
            )
            if len(waiting) >= SIZE:
                flush()

        consumer.timer.call_repeatedly(SECONDS, flush)
        return on_message


def _class(request: Any) -> Any:
    from kombu.utils.imports import symbol_by_name

    return symbol_by_name(request)


def run(app_name: str, task_name: str, jobs: Sequence[str]) -> None:
    """In the pool: by names, since a prefork pool pickles what it is given."""
    from support.apps.features import app

    app.tasks[task_name].run(list(jobs))
