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

from celery_superfetch.model.facts import Facts
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
        real = bench.registry.facts([name])[name]
    image = ProcessImage.current()
    owners = [
        Facts.mine(f"{image.host}|{image.pid}|{n:05}", image, bench.config).with_(
            lists=real.lists, group=real.group
        )
        for n in range(int(count))
    ]
    answers = {facts.owner: bench.registry.register(facts) for facts in owners}
    while True:
        for facts in owners:
            began, before = time.monotonic(), answers[facts.owner]
            answer = bench.registry.heartbeat(facts, before.now, {}, waits=True)
            if answer.place != before.place:
                bench.client.hset(PLACES, facts.owner, json.dumps(answer.place))
            answers[facts.owner] = answer
            time.sleep(max(0.0, began + pause / len(owners) - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
