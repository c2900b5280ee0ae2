"""Asks kombu on which queue lists it would put a message, and which queue lists an app has. A
*queue list* is the Redis list of one queue and one priority step.

`superfetch migrate` and ``DeadSet`` make ``Routes``; reapers and the inspector ask for
``lists_of``. Notices ask for ``list_names_of``; the inspector and `superfetch migrate`, which moves
the messages that stock kombu holds unacked, for ``unacked_of``.
Exchanges and queues are declared in this process's memory, and Redis is only read: if the process
dies, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from celery import Celery
from celery.app.routes import MapRoute

from ..model.queue_list import ListNames
from ..transport.channel import Channel


class Routes:
    """The queue lists of a message by its exchange, routing key and priority: those on which stock
    kombu would put an unacked message back. The app knows the types of its own exchanges; the types
    of others follow from their binding tables in Redis."""

    def __init__(self, app: Celery, channel: Channel) -> None:
        self._channel = channel
        self.expires_of = channel.expires_of  # ms of a queue's x-expires, or 0
        self._queues = cache(self._look_up)
        # kombu declares these in this process's memory; it also reads the length of each queue.
        for queue in app.amqp.queues.values():
            if queue.exchange and queue.exchange.name:
                queue.exchange.declare(channel=channel)
            queue.queue_declare(channel=channel)

    def __call__(
        self, message: Mapping[str, Any], exchange: str, routing_key: str
    ) -> dict[str, int]:
        """Return the message's queue lists -> ms of their x-expires; empty if it goes to none."""
        channel, queues = self._channel, self._queues(exchange, routing_key)
        return {channel.list_for(queue, message): channel.expires_of(queue) for queue in queues}

    def _look_up(self, exchange: str, routing_key: str) -> list[str]:
        channel = self._channel
        if exchange and exchange not in channel.state.exchanges:
            # kombu takes an exchange that was not declared for a direct one, and would find too few
            # queues of a topic exchange. A topic exchange has a pattern in each row of its table.
            table = channel.get_table(exchange)
            if table and all(pattern for _, pattern, _ in table):
                channel.exchange_declare(exchange, "topic")
        # kombu makes a queue for each worker that listens to a fanout exchange; no other worker
        # would read what was broadcast to it.
        fanout = exchange and channel.typeof(exchange).type == "fanout"
        queues = () if fanout else channel.bound_queues(exchange, routing_key)
        return sorted(filter(None, {*queues}))


@contextmanager
def routes_of(app: Celery) -> Iterator[Routes]:
    """Connect to the app's broker, and yield its routes; RedisError if it cannot be reached."""
    with app.connection_for_read() as connection:
        yield Routes(app, connection.channel())


def lists_of(app: Celery) -> set[str]:
    """Return the queue lists of an app, one for each priority step of a queue. The queues of
    broadcasts are left out: they are empty while they have no consumer."""
    list_names = list_names_of(app)
    named = {getattr(queue, "name", queue): queue for queue in _sent_to(app)}
    queues = {**named, **app.amqp.queues}.items()
    kinds = {name: getattr(getattr(q, "exchange", None), "type", "") for name, q in queues}
    names = [name for name, kind in kinds.items() if kind != "fanout"]
    return {list_names.of(name, step) for name in names for step in list_names.steps}


def _sent_to(app: Celery) -> Iterator[Any]:
    """Yield the queues, or their names, that tasks, routes and beat's entries send to. Celery makes
    a queue when a message is sent to it: until a worker consumes it, the settings alone name it."""
    # An entry is a dictionary, or a ScheduleEntry, of which ``dict`` makes one.
    entries = map(dict, (app.conf.beat_schedule or {}).values())
    targets = [entry.get("options") for entry in entries]
    for route in app.amqp.routes or ():
        if isinstance(route, MapRoute):  # a route that is a function answers only for a message
            targets += [*route.map.values(), *route.patterns.values()]
    named = [getattr(task, "queue", None) for task in [*app.tasks.values()]]
    named += [
        target if isinstance(target, str) else dict(target or {}).get("queue") for target in targets
    ]
    return filter(None, named)


def list_names_of(app: Celery) -> ListNames:
    """Return how an app's queue lists are named."""
    return ListNames(str(_option(app, "sep")), tuple(_option(app, "priority_steps")))


def unacked_of(app: Celery) -> tuple[str, str]:
    """Return the names of stock kombu's hash of unacked messages and of its index."""
    return _option(app, "unacked_key"), _option(app, "unacked_index_key")


def _option(app: Celery, name: str) -> Any:
    """Return one of kombu's transport options, or its default."""
    return (app.conf.broker_transport_options or {}).get(name) or getattr(Channel, name)
