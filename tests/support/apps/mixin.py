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
from celery_superfetch.transport.fetch.credit import Credit

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
        credit_of = QoS.credit

        def credit(self: QoS) -> Credit:
            found = credit_of(self)
            return found if found.limit else found._replace(room=64, is_unlimited=False)

        QoS.credit = credit  # type: ignore[method-assign]
    with kombu.Connection(os.environ["URL"], transport="celery_superfetch:Transport") as made:
        Program(name, made).run()
