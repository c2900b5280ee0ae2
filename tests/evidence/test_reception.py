"""Whatever arrives, the worker lives: it runs the job, or puts it aside, or Celery says why not."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from kombu.common import Broadcast

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import eventually
from support.workers.odd import KNOWN, fields, message, payload
from support.workers.worker import Worker

WITHIN = 15.0
POOLS = ("prefork", "threads", "solo")

#: Lines of Celery's, one for each message that it discards.
DISCARDED = (
    "Received and deleted unknown message",
    "Received unregistered task of type",
    "Received invalid task message",
    "Can't decode message body",
    "Discarding revoked task",
    "Couldn't convert ETA",
    "raised unexpected",  # its arguments are none
)


#: Lines for a job that failed in its pool, whether its body had begun or not.
FAILED = ("Pool callback raised exception", "Celery raised an error outside the task's own code")


class Inbox:
    """A worker that stays, and what became of the messages that were pushed for it."""

    def __init__(self, start: Callable[[], Worker], client: redis.Redis, ledger: Ledger) -> None:
        self.worker = start()
        self.client = client
        self.db = Database(client)
        self.ledger = ledger
        self._names = itertools.count()
        self._discarded = self._failed = 0

    def takes(self, *broken: dict[str, Any]) -> None:
        """Push messages, and one behind them that is as it should be; look what became of each."""
        names = [f"job-{next(self._names)}" for _ in range(len(broken) + 1)]
        fields = dict(zip(names, [*broken, {}], strict=True))
        sent = {name: payload(message(name, **how)) for name, how in fields.items()}
        self.ledger.clear()
        self.client.delete(*self.client.keys("superfetch:dead*"), "superfetch:dead")
        self.client.lpush("celery", *sent.values())
        eventually(self._done, WITHIN, message="nothing is left on the queue or in flight")
        runs = self.ledger.starts()
        assert names[-1] in runs, "the one behind them ran"
        assert {name: len(times) for name, times in runs.items() if len(times) > 1} == {}
        payloads = {record["payload"].encode() for record in self.db.dead()}
        dead = {name for name, raw in sent.items() if raw in payloads}
        assert not runs.keys() & dead, "none ran and is dead as well"
        log = self.worker.log()
        lines, failures = (sum(map(log.count, them)) for them in (DISCARDED, FAILED))
        discarded, self._discarded = lines - self._discarded, lines
        failed, self._failed = failures - self._failed, failures
        lost = [raw for name, raw in sent.items() if name not in runs and name not in dead]
        # Celery may say that it discards one, and fail before it does.
        assert discarded <= len(lost) + len(dead), f"{discarded} lines for {lost}"
        assert len(lost) <= discarded + failed, f"{discarded} + {failed} lines for {lost}"

    def _done(self) -> bool:
        if not self.worker.alive():
            pytest.fail(f"the worker has ended\n{self.worker.tail()}")
        left = self.db.contents("celery") if self.db.length() else []
        # In this order, since a claim moves a job from the queue to a list that may be new.
        for key in (*self.db.keys("superfetch:probation:*"), *self.db.private_lists()):
            left += self.db.contents(key)
        assert not left, left[:5]
        return True


@pytest.fixture
def inbox(worker: Any, client: redis.Redis, ledger: Ledger) -> Callable[[str], Inbox]:
    def start(pool: str) -> Inbox:
        return Inbox(lambda: worker(app="odd", pool=pool, concurrency=2), client, ledger)

    return start


@pytest.mark.parametrize("pool", [*POOLS, "gevent"])
def test_what_breaks_at_reception_is_put_aside(pool, inbox, cli):
    """A1: each of these ended every worker of a fleet, or stayed in flight as long as one lived."""
    box = inbox(pool)
    box.takes(*KNOWN.values())
    told = "all who could be told are told"
    eventually(lambda: not box.client.exists("superfetch:dead:unannounced"), WITHIN, message=told)
    assert box.client.zcard("superfetch:dead:junk") == 1, "that without a tag is no message"
    listed = cli("dead", "list").out
    assert "cannot be received: ValueError (" in listed
    assert "unparseable payload" in listed


def test_jobs_may_end_in_threads_while_one_is_put_aside(worker, client, db, ledger):
    """The books of what is reserved changed during the look at them, and the worker ended."""
    one = worker(pool="threads", concurrency=4, env={"HAPPENS": "slow_books"})
    good = [f"job {number}" for number in range(16)]
    odd = message("odd", task="shop.note", **KNOWN["past, timelimit [1]"])
    held = [message(job, task="shop.hold", body=[[job, 0.2], {}, {}]) for job in good]
    client.lpush("celery", *map(payload, [*held[:12], odd, *held[12:]]))
    eventually(lambda: set(ledger.finishes()) == set(good))
    eventually(lambda: db.dead())
    assert one.alive()


def test_what_cannot_be_put_aside_yet_is_later(worker, client, db, ledger):
    """A1: the server refuses, and neither the worker nor the jobs behind it wait for that."""
    one = worker(app="odd", pool="threads")
    broken = payload(message("odd", **KNOWN["past, timelimit [1]"]))
    in_the_way = "superfetch:dead"
    client.set(in_the_way, "no set")
    client.lpush("celery", broken, payload(message("next")))
    eventually(lambda: "next" in ledger.starts())
    one.wait_log("could not be moved to the dead set")
    eventually(lambda: [*db.held().values()] == [["odd"]])
    client.delete(in_the_way)
    eventually(lambda: [record["payload"].encode() for record in db.dead()] == [broken])
    eventually(db.settled, message="its notice has run, too")
    assert one.alive()


def test_else_it_ends_each_worker_and_nobody_counts(worker, client, db):
    """A1, the control."""
    client.lpush("celery", payload(message("odd", task="shop.note", **KNOWN["body []"])))
    for _ in range(2):
        worker(env={"WITHOUT": "reception"}, ready=False).wait_exit()
        assert db.length() == 1
        assert not any("recoveries" in counters for counters in db.counters())


#: Messages for a task that Celery alone runs, or lets fail.
HARMLESS = {
    "kwargs null": {"body": [["odd"], None, {}]},
    "embed a list": {"body": [["odd"], {}, [1]]},
    "retries a text": {"headers": {"retries": "two"}},
    "shadow a list": {"headers": {"shadow": ["a"]}},
    "headers a list": {"headers": {"headers": ["a"], "redelivered": True}},
}


@pytest.mark.parametrize("superfetch", [True, False], ids=["", "stock"])
def test_no_broadcast_ends_the_workers_to_which_it_comes(worker, app, ledger, superfetch):
    """The field of a job that moves to the dead set ended each of them at once. The control: in
    Celery alone it ends none."""
    one = worker(app="odd", concurrency=1, superfetch=superfetch)
    news = Broadcast("news", routing_key="news.mine")
    app.control.add_consumer("news.mine", exchange="news", exchange_type="fanout")

    def send(name: str, **how: Any) -> None:
        whole = message(name, **how)
        with app.producer_pool.acquire() as producer:
            producer.publish(
                base64.b64decode(whole["body"]),
                content_type=whole["content-type"],
                content_encoding=whole["content-encoding"],
                headers=whole["headers"],
                exchange=news.exchange,
                routing_key="news.mine",
                declare=[news.exchange],
                odd=name,
            )

    def has_subscribed() -> bool:
        send("first")
        return "first" in ledger.starts()

    eventually(has_subscribed, WITHIN, every=1)
    for name, how in HARMLESS.items():
        send(name, **how)
    send("behind")
    eventually(lambda: "behind" in ledger.starts(), WITHIN)
    assert one.alive()
    refused = one.log().count("Received invalid task message")
    assert refused == (len(HARMLESS) if superfetch else 0)


@pytest.mark.parametrize("pool", POOLS)
def test_whatever_arrives_the_worker_lives(pool, inbox, request):
    """A1: envelopes, headers, properties and bodies of both protocols, broken in each place."""
    box = inbox(pool)
    rounds, number = request.config.getoption("fuzz"), request.config.getoption("seed")

    @settings(
        max_examples=rounds,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.lists(fields(), min_size=30, max_size=60))
    def batch(broken: list[dict[str, Any]]) -> None:
        box.takes(*broken)

    (seed(number)(batch) if number is not None else batch)()
