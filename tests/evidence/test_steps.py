"""A job is not done until what it sends at its end is sent: meanwhile the server is away."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain, chord
from celery.exceptions import ChordError, TimeoutError

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.waiting import eventually

Send = Callable[[Celery], Any]


def signature(app: Celery, name: str, *args: Any) -> Any:
    return app.signature(name, args, immutable=True)


def note(app: Celery, job: str) -> Any:
    return signature(app, "shop.note", job)


def two_links(app: Celery) -> Any:
    links = [note(app, "callback"), note(app, "callback too")]
    return signature(app, "shop.hold", "linked").apply_async(link=links)


def chorus(app: Celery) -> Any:
    parts = [signature(app, "features.part", f"part {number}") for number in range(2)]
    return chord(parts, app.signature("features.total", ("body",)), app=app)()


#: Kind of step -> who sends it, and the jobs that have to run.
STEPS: dict[str, tuple[Send, set[str]]] = {
    "retry": (
        lambda app: signature(app, "features.again", "again").delay(),
        {"again", "retry of again"},
    ),
    "replacement": (
        lambda app: signature(app, "features.replaced", "replaced").delay(),
        {"replaced", "instead of replaced"},
    ),
    "chain": (
        lambda app: chain(signature(app, "shop.hold", "first"), note(app, "next")).apply_async(),
        {"first", "next"},
    ),
    "callbacks": (two_links, {"linked", "callback", "callback too"}),
    "errback": (
        lambda app: signature(app, "features.fails", "fails").apply_async(
            task_id="failed", link_error=app.signature("features.told")
        ),
        {"fails", "told failed"},
    ),
}


@pytest.fixture
def away(
    worker: Any, app: Celery, ledger: Ledger, proxy: FaultProxy, db: Database
) -> Callable[..., Any]:
    """Let jobs end while the broker is away; what came of the first."""

    def run(pool: str, *sent: Send, jobs: int, says: str, times: int = 1, without: str = "") -> Any:
        one = worker(
            app="steps",
            pool=pool,
            concurrency=jobs,
            url=proxy.url(),
            result_url=app.conf.broker_url,
            options={"connect_retries_timeout": 1},  # 25 s, and four times that on Celery 5.7
            env={"WITHOUT": without},
        )
        first, *_ = [send(app) for send in sent]
        eventually(lambda: len(ledger.starts()) == jobs)
        proxy.refuse()
        proxy.cut()
        ledger.release()
        eventually(lambda: one.log().count(says) >= times, 60, message=f"{says} ({times})")
        proxy.heal()
        return first

    return run


@pytest.mark.parametrize(
    ("pool", "kinds"),
    [
        *((pool, [*STEPS]) for pool in ("prefork", "threads", "gevent")),
        *(("solo", [kind]) for kind in ("retry", "chain", "errback")),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_job_whose_next_message_cannot_be_sent_runs_again(away, ledger, db, pool, kinds):
    jobs = set.union(*(STEPS[kind][1] for kind in kinds))
    away(
        pool,
        *(STEPS[kind][0] for kind in kinds),
        jobs=len(kinds),
        says="the job is requeued and runs again",
        times=len(kinds),
    )
    eventually(lambda: jobs == set(ledger.starts()), message=f"{jobs} run")
    eventually(db.settled)
    assert {job for job, runs in ledger.runs().items() if runs > 1} == {
        job for job in jobs if job in ("again", "replaced", "first", "linked", "fails")
    }
    assert max(ledger.runs().values()) == 2


@pytest.mark.parametrize(
    ("kind", "says"),
    [("retry", "celery.exceptions.Reject"), ("chain", "raised unexpected: OperationalError")],
)
def test_the_control_what_it_was_to_send_never_runs(away, ledger, db, kind, says):
    send, jobs = STEPS[kind]
    away("threads", send, jobs=1, says=says, without="sent_steps")
    eventually(db.settled, 60)
    assert set(ledger.runs().values()) == {1}
    assert ledger.runs().keys() < jobs


CHORUS = {"part 0": 1, "part 1": 1, "body": 1}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_part_of_a_chord_waits_until_the_body_is_sent(away, ledger, db, pool):
    """A second run would help nobody: Celery has forgotten by then how many parts had ended."""
    says = "Redis does not accept it"
    assert away(pool, chorus, jobs=2, says=says).get(timeout=60) == 2
    eventually(db.settled)
    assert ledger.runs() == CHORUS


def test_the_control_the_body_never_runs(away, ledger):
    body = away("threads", chorus, jobs=2, says="Chord callback for", without="sent_steps")
    with pytest.raises(ChordError):
        body.get(timeout=60)
    assert ledger.runs().keys() == CHORUS.keys() - {"body"}


def test_what_a_body_sends_it_hears_of_itself(away, ledger):
    def delays(app: Celery) -> Any:
        return signature(app, "features.delays", "delays").delay()

    assert away("threads", delays, jobs=1, says="succeeded").get(timeout=30) == "OperationalError"
    assert ledger.runs() == {"delays": 1}


# -- a server that is there, and refuses


@pytest.fixture
def refused(
    worker: Any, make_app: Any, ledger: Ledger, fresh_server: Any, url: str
) -> Callable[..., tuple[Any, Database]]:
    """Let a chord and other jobs end while their server refuses all writes; its result."""

    def run(pool: str, refusal: dict[str, str], without: str = "") -> tuple[Any, Database]:
        own = fresh_server()
        # What cannot store its result is requeued in any case, and its body published later.
        place = {"url": own.url(), "result_url": url if without else own.url()}
        sends = [chorus, *(send for send, _ in STEPS.values())]
        jobs = len(sends) + 1
        conf = {"broker_pool_limit": None}
        options = {"reap_interval": 1}
        env = {"WITHOUT": without}
        one = worker(
            app="steps", pool=pool, concurrency=jobs, options=options, conf=conf, env=env, **place
        )
        app = make_app(**place)
        body, *_ = [send(app) for send in sends]
        eventually(lambda: len(ledger.starts()) == jobs)
        client = own.client()
        before = {name: client.config_get(name)[name] for name in refusal}
        for name, value in refusal.items():
            client.config_set(name, value)
        ledger.release()
        troubled = re.compile(r"Job (\S+) could not")
        if without:
            one.wait_log("Chord callback for")
        else:
            eventually(lambda: len(set(troubled.findall(one.log()))) == jobs)
        for name, value in before.items():
            client.config_set(name, value)
        return body, Database(client)

    return run


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_refusal_that_passes_does_not_end_the_try(refused, ledger, pool):
    """As with MISCONF, or after a failover: an error to each write, for a while."""
    body, db = refused(pool, {"min-replicas-to-write": "1"})
    assert body.get(timeout=60) == 2
    jobs = set.union({*CHORUS}, *(jobs for _, jobs in STEPS.values()))
    eventually(lambda: set(ledger.starts()) == jobs, 60, message=f"{jobs} run")
    eventually(db.settled, 60)
    assert max(ledger.runs().values()) <= 2
    assert {job: ledger.runs()[job] for job in CHORUS} == CHORUS


def test_the_control_the_chord_never_completes(refused, ledger):
    body, _ = refused(
        "threads", {"min-replicas-to-write": "1"}, "patience_with_refusals,sent_steps"
    )
    with pytest.raises((TimeoutError, ChordError)):
        body.get(timeout=5)
    assert "body" not in ledger.runs()
