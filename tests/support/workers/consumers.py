"""A fleet of consumers that wait on the same queues, each in a process of its own:

python -m support.workers.consumers URL COUNT QUEUE...

Each adds the body of a message to the list ``fleet:seen`` and acks it. With ``WITHOUT=places`` in
the environment no consumer is told its place among the others (the control).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

import kombu
import redis

from support.workers.inbox import TRANSPORT

SEEN = "fleet:seen"


def consume(url: str, queues: list[str]) -> None:
    client = redis.Redis.from_url(url)

    def see(message: Any) -> None:
        client.rpush(SEEN, message.decode())
        message.ack()

    with kombu.Connection(url, transport=TRANSPORT) as connection:
        channel = connection.channel()
        consumer = kombu.Consumer(channel, [kombu.Queue(name) for name in queues], on_message=see)
        consumer.qos(prefetch_count=4)
        consumer.consume()
        while True:
            with suppress(TimeoutError):
                connection.drain_events(timeout=5)


def main(url: str, count: str, *queues: str) -> None:
    if os.environ.get("WITHOUT") == "places":
        from celery_superfetch.model.owner_rank import OwnerRank
        from celery_superfetch.owner.owner import Owner

        Owner.rank = property(lambda owner: OwnerRank(), lambda owner, place: None)  # type: ignore[assignment]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that a test kills leave no zombie
    for _ in range(int(count)):
        if not os.fork():
            consume(url, list(queues))
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
