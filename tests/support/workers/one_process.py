"""A pool of one process, the test's own: it runs a job at once, without a worker."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.worker.request import Request
from kombu.transport.virtual import Message
from kombu.utils.json import loads

from celery_superfetch.app.steps import run
from celery_superfetch.model.job import DELIVERY, Claimed
from celery_superfetch.model.step import Claim
from support.workers.bench import Bench

#: Queue of the jobs, and of what they publish.
MAIL, NEXT = "mail", "next"


class Pool:
    """A pool of one process, this one: it runs at once what a request hands it."""

    def __init__(self, app: Celery, bench: Bench) -> None:
        self.app, self.bench = app, bench
        self.owner = bench.owner()
        self.seen: list[dict[str, Any]] = []  # what each run knows of its job
        with app.pool.acquire(block=True) as connection:
            self.channel = connection.default_channel

    def apply_async(self, target: Any, args: Any, **_: Any) -> None:
        self.answer = run(self.claim, target, *args)

    def take(self) -> Claimed:
        [claimed] = self.bench.claim(self.owner, [MAIL], 1).jobs
        return claimed

    def run(
        self, claimed: Claimed, header: Any = None, *, redelivered: bool = False, **claim: Any
    ) -> Any:
        """Its answer: 0 or 1 for failed, the result or what was raised, and seconds. ``header``:
        what its delivery says of earlier ones; ``redelivered``: that there were some."""
        key, counters = self.bench.keys.private(self.owner.owner), claimed.counters
        steps = counters.steps if counters else ""
        facts = self.channel.database_name, key, claimed.job.claim_id, claimed.token, steps
        self.claim = Claim(*facts)._replace(**claim)
        payload = loads(claimed.job.payload)
        if header:
            payload["headers"][DELIVERY] = header
        if redelivered:
            payload["properties"]["delivery_info"]["redelivered"] = True
        message = Message(payload, channel=self.channel)
        Request(message, app=self.app, hostname="here").execute_using_pool(self)
        return self.answer

    def sent(self) -> list[str]:
        """What waits for whoever is next."""
        return sorted(loads(raw)["headers"]["id"] for raw in self.bench.queue(NEXT))


def raised(answer: Any, kind: type[Exception]) -> Any:
    """The error with which a run ended."""
    failed, error, seconds = answer
    assert (failed, seconds) == (1, 0.0)
    exc = getattr(error.exception, "exc", error.exception)  # with its traceback, for a pickle
    assert isinstance(exc, kind), exc
    return exc
