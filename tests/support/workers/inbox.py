"""A plain kombu consumer on the transport: what it received, and how it settles."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import kombu
from kombu.asynchronous.hub import Hub
from kombu.transport import virtual
from redis.exceptions import RedisError

from support.waiting import eventually

if TYPE_CHECKING:
    from typing_extensions import Self

TRANSPORT = "celery_superfetch:Transport"


def turn_of(hub: Hub) -> bool:
    """Celery's event loop goes round once, and does not wait for ever."""
    hub.call_later(0.02, lambda: None)
    hub.run_once()
    return True


class Inbox:
    """Consumes some queues over a connection of its own, until it is closed."""

    def __init__(
        self,
        url: str,
        *queues: str | kombu.Queue,
        prefetch: int | None = None,
        no_ack: bool = False,
        accept: Sequence[str] = ("json",),
        transport: str | None = TRANSPORT,
        consume: bool = True,
        **options: Any,
    ) -> None:
        self.connection = kombu.Connection(url, transport=transport, transport_options=options)
        self.messages: list[kombu.Message] = []
        self.channel = self.connection.channel()
        named = [kombu.Queue(q) if isinstance(q, str) else q for q in queues or ("mail",)]
        self.consumer = kombu.Consumer(
            self.channel,
            named,
            no_ack=no_ack,
            accept=list(accept),
            prefetch_count=prefetch,
            on_message=self.messages.append,
        )
        if consume:
            self.consumer.consume()

    def turn(self, timeout: float = 0.05) -> None:
        """One turn of the loop; nothing may come."""
        with contextlib.suppress(TimeoutError):
            self.connection.drain_events(timeout=timeout)

    def receive(self, count: int, within: float = 10.0) -> list[Any]:
        """Turn until `count` messages in all are here; what they say. An error of a turn is raised,
        unless it is one of the connection's or the server's: these count as "not yet"."""
        errors: list[Exception] = []

        def arrived() -> bool:
            if len(self.messages) < count:
                try:
                    self.turn()
                except (*self.connection.recoverable_connection_errors, RedisError):
                    raise
                except Exception as exc:
                    errors.append(exc)
            return bool(errors) or len(self.messages) >= count

        eventually(arrived, within, 0.0, message=f"{count} messages, got {self.said()}")
        if errors:
            raise errors[0]
        return self.said()

    def settle_in(self) -> Self:
        """Some turns, so that it has claimed what it may and waits for more."""
        for _ in range(5):
            self.turn(0.02)
        return self

    def said(self) -> list[Any]:
        return [message.decode() for message in self.messages]

    def ids(self) -> list[str]:
        return [message.headers["id"] for message in self.messages]

    def ack_all(self) -> None:
        """Ack what is not settled yet."""
        for message in self.messages:
            if not message.acknowledged:
                message.ack()

    def crash(self) -> None:
        """End as a killed process does: what is not acked stays wherever it is."""
        qos = self.channel.qos
        if isinstance(qos, virtual.QoS):  # stock's
            qos._on_collect.cancel()
            qos._delivered.clear()
        else:
            qos.at_exit.cancel()
            qos.unsettled.clear()
        self.close()

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stock(url: str, *queues: str | kombu.Queue, **how: Any) -> Inbox:
    """One on kombu's own transport."""
    return Inbox(url, *queues, transport=None, **how)


def publish(url: str, queue: str | kombu.Queue, *bodies: Any, **how: Any) -> None:
    """Publish over the stock transport, as any producer does."""
    options = how.pop("options", {})
    with (
        kombu.Connection(url, transport_options=options) as connection,
        connection.SimpleQueue(queue) as simple,
    ):
        for body in bodies:
            simple.put(body, serializer="json", **how)
