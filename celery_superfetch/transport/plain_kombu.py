"""For programs that consume with kombu and without Celery: what Celery's worker does by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kombu

from ..errors import UnsupportedBroker
from ..model.job import digest
from ..reaper.reaper import Reaper
from ..reaper.report import Report
from .channel import Channel
from .deliveries import delivery_of


@contextmanager
def working_on(message: Any) -> Iterator[bool]:
    """Keep a message while the block runs, also when its connection is lost meanwhile: kombu closes
    its channel, which gives back what it has delivered, and the message would run twice::

        with working_on(message) as ours:
            if ours:
                do(message.payload)
                message.ack()

    The ack finds its way without the old connection. A block that ends without one gives the
    message back when its channel is closed (at once if it is closed already). ``ours`` is False
    when the message was given back, or taken away, before the block was entered; or when the server
    has not heard of this process lately, so that others may take it for dead.

    Arguments:
        message: a ``kombu.Message``, as a consumer's callback gets it.
    """
    delivery = delivery_of(message)
    if delivery is None:  # no_ack, fanout, or another transport: nothing to protect
        yield True
        return
    job, in_flight = delivery.job, delivery.in_flight
    try:
        ours = bool(in_flight.start(job, digest(job.payload)))
        if not ours:
            delivery.requeue()
        yield ours
    finally:
        in_flight.end(job)
        if message.channel.closed and job in in_flight.jobs:
            message.channel.fetch.requeue([job])


def reap(connection: kombu.Connection, *, dry_run: bool = False) -> Report:
    """One pass over the broker's database: the jobs of dead owners go back to their queues. Any
    process may call it every few seconds, best several do; beside Celery workers with this package
    none has to.

    Arguments:
        connection: one whose transport is this package's.
        dry_run: only judge and count; change nothing.

    Raises:
        UnsupportedBroker: the connection's transport is another.
        redis.exceptions.RedisError: the registry cannot be read.
    """
    channel = connection.default_channel
    if not isinstance(channel, Channel):
        raise UnsupportedBroker(
            f"{connection.as_uri()} is not served by celery_superfetch: make the connection with "
            'transport="celery_superfetch:Transport"'
        )
    membership = channel.membership
    # Heartbeats keep a watch on the others. Who sends none adds up their silence in Redis.
    watch = membership.heart.watch if membership.owner else None
    return Reaper(membership.database, watch=watch).reap(dry_run=dry_run)
