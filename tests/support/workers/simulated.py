"""Owners of one process that wait for jobs and never claim one, beside real consumers of the same
queues:

python -m support.workers.simulated URL COUNT INTERVAL QUEUE...

Each is registered and sends a heartbeat every ``INTERVAL`` seconds, and so has a place among the
consumers: the hash ``fleet:places`` has the last one of each, as JSON. The death of this process is
the death of all.
"""

from __future__ import annotations

import json
import sys
import time

import redis

from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage
from support.workers.bench import Bench
from support.workers.inbox import Inbox

PLACES = "fleet:places"


def main(url: str, count: str, interval: str, *queues: str) -> None:
    pause = float(interval)
    bench = Bench(
        redis.Redis.from_url(url), heartbeat_interval=pause, owner_ttl=12 * pause, app_name=""
    )
    with Inbox(url, *queues) as inbox:  # a real owner of these queues
        inbox.settle_in()
        name = inbox.channel.owner.name
        real = bench.registry.records([name])[name]
    image = ProcessImage.current()
    owners = [
        OwnerRecord.of_process(f"{image.host}|{image.pid}|{n:05}", image, bench.config).with_(
            lists=real.lists, group=real.group
        )
        for n in range(int(count))
    ]
    answers = {record.owner: bench.registry.register(record) for record in owners}
    while True:
        for record in owners:
            began, before = time.monotonic(), answers[record.owner]
            answer = bench.registry.heartbeat(record, before.now, {}, waits=True)
            if answer.rank != before.rank:
                bench.client.hset(PLACES, record.owner, json.dumps(answer.rank))
            answers[record.owner] = answer
            time.sleep(max(0.0, began + pause / len(owners) - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
