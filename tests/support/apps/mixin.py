"""A program by kombu's `ConsumerMixin`: `-m support.apps.mixin <name> [hoards]`, without a limit.

It says what it ran, as JSON lines, until it is killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import kombu
from kombu.mixins import ConsumerMixin

from celery_superfetch.transport.deliveries import QoS

SECONDS = 0.1  # that a message takes


class Program(ConsumerMixin):
    def __init__(self, name: str, connection: kombu.Connection) -> None:
        self.name, self.connection = name, connection

    def get_consumers(self, consumer: Any, channel: Any) -> list[kombu.Consumer]:
        return [consumer([kombu.Queue("mail")], on_message=self.on_message)]

    def on_message(self, message: kombu.Message) -> None:
        time.sleep(SECONDS)
        line = {"who": self.name, "ran": message.headers["id"]}
        os.write(1, (json.dumps(line) + "\n").encode())
        message.ack()


if __name__ == "__main__":
    name, *hoards = sys.argv[1:]
    if hoards:  # the control: as many as the channel may claim at once
        QoS.unlimited = property(lambda self: False)  # type: ignore[assignment]
        credit = QoS.credit
        QoS.credit = lambda self: 64 if not self.prefetch_count else credit(self)  # type: ignore
    with kombu.Connection(os.environ["URL"], transport="celery_superfetch:Transport") as made:
        Program(name, made).run()
