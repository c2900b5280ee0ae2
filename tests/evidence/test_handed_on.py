"""A step is handed on once, however often its job runs.

What a job hands on goes to a queue that nobody serves. Between a worker and its broker stands a
proxy, at which whoever hands on stands still when the server has the first message, to be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from celery import Celery, chain, chord, group

from support.hosts import Host
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.waiting import eventually
from support.workers.worker import Worker

NEXT = "next"  # the queue of what is handed on
OPTIONS = {"strike_limit": 10, "reap_interval": 1}


class Kind(NamedTuple):
    send: Callable[[Celery], Any]
    messages: int = 1
    runs: int = 2  # of the job whose first is cut short


def publishes(words: Sequence[bytes]) -> bool:
    """Whether a command brings a message to that queue; a worker's rounds only ask for its age."""
    return NEXT.encode() in words and any(b'"properties"' in word for word in words)


def job(app: Celery, name: str, *args: Any, queue: str = "celery", **kwargs: Any) -> Any:
    return app.signature(name, args, kwargs, immutable=True).set(queue=queue)


def link(app: Celery, number: int = 1) -> Any:
    return job(app, "shop.note", f"next {number}", queue=NEXT)


def links(app: Celery) -> list[Any]:
    return [link(app, 1), link(app, 2)]


def parts(app: Celery) -> list[Any]:
    return [job(app, "features.part", f"part {number}", queue=NEXT) for number in range(2)]


def first(app: Celery) -> Any:
    return job(app, "shop.note", "job")


def twins(app: Celery) -> list[Any]:
    """A signature that stands twice in a group, with one id."""
    signature = link(app)
    signature.freeze()
    return [signature, signature]


def tail(app: Celery) -> Any:
    """The end of a chord."""
    return app.signature("features.total", ("body",)).set(queue=NEXT)


KINDS = {
    "chain": Kind(lambda app: chain(first(app), link(app)).apply_async()),
    "callbacks": Kind(lambda app: first(app).apply_async(link=links(app)), 2),
    "callback with its own correlation id": Kind(
        lambda app: first(app).apply_async(link=link(app).set(correlation_id="trace-1"))
    ),
    "group": Kind(lambda app: chain(first(app), group(links(app))).apply_async(), 2),
    "group of twins": Kind(lambda app: chain(first(app), group(twins(app))).apply_async(), 2),
    "chord": Kind(lambda app: chain(first(app), chord(parts(app), tail(app))).apply_async(), 2),
    "chord as callback": Kind(
        lambda app: first(app).apply_async(link=chord(parts(app), tail(app))), 2
    ),
    "errbacks": Kind(
        lambda app: job(app, "features.fails", "job").apply_async(link_error=links(app)), 2
    ),
    # Nothing of the job is left to do.
    "replacement": Kind(
        lambda app: job(app, "features.replaced", "job", *links(app)).apply_async(), 1, 1
    ),
}
KINDS["retry"] = Kind(
    lambda app: app.signature("features.again", ("job",), {"queue": NEXT}).apply_async(), 1, 1
)


@pytest.fixture
def cut_short(
    worker: Any, app: Celery, ledger: Ledger, proxy: FaultProxy, db: Database
) -> Callable[..., int]:
    """`cut_short("chain", "prefork")`: kill whoever hands on between two messages, or between the
    last one and the ack; how many messages there are in the end."""

    def run(name: str, pool: str, without: str = "", **conf: Any) -> int:
        kind, env = KINDS[name], {"WITHOUT": without}
        settings = {"app": "steps", "pool": pool, "concurrency": 1, "options": OPTIONS, "env": env}
        settings["conf"] = conf
        victim = worker(url=proxy.url(), result_url=app.conf.broker_url, **settings)
        KINDS["chain"].send(app)  # from here on the server knows the scripts
        eventually(lambda: db.length(NEXT) == 1 and not db.held())
        db.client.delete(NEXT)
        ledger.clear()
        ledger.release()
        sent = proxy.hold_at(publishes, carried_out=True)
        kind.send(app)
        assert sent.wait(30)
        eventually(lambda: db.length(NEXT) == 1)
        if pool == "prefork":
            victim.kill9_child()
        else:
            victim.kill9_all()
            worker(**settings)
        eventually(db.settled, 60, message="all is settled")
        assert ledger.runs() == {"job": kind.runs} or without
        return db.length(NEXT)

    return run


@pytest.mark.parametrize(
    ("kind", "pool"),
    [
        *((kind, "prefork") for kind in KINDS),
        *((kind, pool) for pool in ("threads", "gevent", "solo") for kind in ("chain", "retry")),
    ],
)
def test_a_step_is_handed_on_once(cut_short, db, kind, pool):
    assert cut_short(kind, pool) == KINDS[kind].messages
    assert not db.keys("superfetch:history:*"), "what was noted is gone with the job"


@pytest.mark.parametrize("kind", ["chain", "retry"])
def test_a_step_to_another_name_of_the_broker_is_handed_on_once(cut_short, proxy, kind):
    """It was published by each run, and no log said so."""
    other = proxy.url().replace("127.0.0.1", "localhost")
    assert cut_short(kind, "prefork", broker_read_url=other) == KINDS[kind].messages


@pytest.mark.parametrize("kind", ["chain", "retry", "chord"])
def test_the_control_hands_it_on_twice(cut_short, kind):
    messages = KINDS[kind].messages
    assert cut_short(kind, "prefork", "handing_on") == messages + 1


# -- a process that was taken for dead

#: The verdicts of the defaults, sooner.
QUICK = {"heartbeat_interval": 1, "owner_ttl": 3, "reap_interval": 1}


def thaw(
    worker: Any, app: Celery, ledger: Ledger, db: Database, pool: str, without: str = ""
) -> Worker:
    """A worker sleeps while it runs a job, until that has run elsewhere, and wakes to its end."""
    settings: dict[str, Any] = {"app": "steps", "options": QUICK, "env": {"WITHOUT": without}}
    chain(job(app, "shop.hold", "job"), link(app)).apply_async()
    sleeper: Worker = worker(host=Host("here"), pool=pool, concurrency=1, **settings)
    eventually(lambda: ledger.starts())
    with sleeper.frozen():
        worker(host=Host("there"), concurrency=1, **settings)
        eventually(lambda: ledger.runs()["job"] == 2, message="it runs again elsewhere")
    sleeper.wait_log("registered again under a new id")
    ledger.release()
    eventually(lambda: len(ledger.finishes().get("job", ())) == 2, message="both runs end")
    eventually(lambda: not db.private_lists(), message="all is settled")
    return sleeper


@pytest.mark.netns
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_who_was_taken_for_dead_hands_on_nothing(worker, app, ledger, db, pool):
    sleeper = thaw(worker, app, ledger, db, pool)
    sleeper.wait_log("which may run elsewhere: this run sends no further message")
    eventually(lambda: db.stat("ownership_lost") == 1)
    assert db.length(NEXT) == 1


@pytest.mark.netns
def test_the_control_hands_on_what_is_anothers(worker, app, ledger, db):
    thaw(worker, app, ledger, db, "threads", "handing_on")
    # Whoever holds nothing any more hands on after its job's end, whenever that is.
    eventually(lambda: db.length(NEXT) == 2)


# -- a step that goes to several queues

NEWS = {"exchange": "news", "exchange_type": "topic", "routing_key": "news.#"}
NEWS_OF = ["mail", "press"]
NEWS_QUEUES: dict[str, Any] = {"celery": {}, **dict.fromkeys(NEWS_OF, NEWS)}


def test_a_step_whose_bindings_were_lost_goes_to_each_of_its_queues(worker, app, ledger, db):
    """They are declared again as the step is published: it is one step in each queue."""
    consumer = worker(concurrency=1, queues=["celery"], conf={"task_queues": NEWS_QUEUES})
    news = job(app, "shop.note", "news").set(exchange="news", routing_key="news.today")
    # By the queue of a step, a producer's connection learns its binding.
    job(app, "shop.hold", "job").apply_async(
        link=[news.clone().set(queue=name) for name in NEWS_OF]
    )
    eventually(lambda: "job" in ledger.starts())
    ledger.release("job")
    eventually(lambda: [db.length(name) for name in NEWS_OF] == [2, 1])
    job(app, "shop.hold", "again").apply_async(link=news)
    eventually(lambda: "again" in ledger.starts())
    assert db.client.delete("_kombu.binding.news") == 1
    ledger.release("again")
    consumer.wait_log("and were declared again")
    eventually(lambda: not any(db.held().values()), message="all were acked")
    assert [db.length(name) for name in NEWS_OF] == [3, 2]
