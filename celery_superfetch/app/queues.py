"""Where kombu would put a message: asked of kombu itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery

from ..transport.channel import Channel


class Routes:
    """Queue lists by exchange, routing key and priority, as stock kombu restores a message.

    Arguments:
        app: knows the types of its exchanges and the options of its queues. Of what it does not
            know, the binding tables in Redis tell.
    """

    def __init__(self, app: Celery, channel: Channel) -> None:
        self._channel = channel
        self._known: dict[tuple[str, str], list[str]] = {}
        for queue in app.amqp.queues.values():
            if queue.exchange and queue.exchange.name:
                queue.exchange.declare(channel=channel)  # in this process's memory alone
            queue.queue_declare(channel=channel)  # likewise; it reads a length

    @property
    def unacked(self) -> tuple[str, str]:
        """Names of stock kombu's hash of unacked messages and of its index."""
        return self._channel.unacked_key, self._channel.unacked_index_key

    def __call__(
        self, message: Mapping[str, Any], exchange: str, routing_key: str
    ) -> dict[str, int]:
        """The message's queue lists -> ms of their x-expires; empty where it goes to none."""
        channel = self._channel
        priority = channel._get_message_priority(message, reverse=False)
        # A broadcast was for one worker: what kombu makes of its queue, nobody ever reads.
        return {
            channel._q_for_pri(queue, priority): channel.expires_of(queue)
            for queue in self._queues(exchange, routing_key)
        }

    def _queues(self, exchange: str, routing_key: str) -> list[str]:
        route = (exchange, routing_key)
        if route not in self._known:
            self._know_type(exchange)
            fanout = exchange and self._channel.typeof(exchange).type == "fanout"
            found = [] if fanout else self._channel._lookup(exchange, routing_key)
            self._known[route] = sorted({queue for queue in found if queue})
        return self._known[route]

    def _know_type(self, exchange: str) -> None:
        """kombu takes an exchange that nobody declared for a direct one, and loses the rest."""
        if not exchange or exchange in self._channel.state.exchanges:
            return
        table = self._channel.get_table(exchange)
        if table and all(pattern for _, pattern, _ in table):
            self._channel.exchange_declare(exchange, "topic")


@contextmanager
def routes_of(app: Celery) -> Iterator[Routes]:
    """The routes of an app's broker, while its connection is open."""
    with app.connection_for_read() as connection:
        yield Routes(app, connection.channel())
