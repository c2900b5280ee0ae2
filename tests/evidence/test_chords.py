"""A chord whose workers are killed: its body gets one result of each part, and is published once.

Between a worker and its results stands a proxy, at which whoever ends a part stands still, at one
command after the other, to be killed there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import celery
import pytest
import redis
from celery import Celery, chord, group
from celery.exceptions import ChordError
from celery.result import AsyncResult

from celery_superfetch import install
from celery_superfetch.app.chords import on_chord_part_return
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy, Words
from support.waiting import eventually
from support.workers.worker import Worker

CELERY_57 = celery.VERSION >= (5, 7)
OPTIONS = {"strike_limit": 10, "reap_interval": 1}

#: What a part does at its end with its results, and with the server's alone.
POINTS = ("EXEC", "EVALSHA", "GET", "ZRANGE", "LRANGE")
#: Most of these that any version needs.
MOST = 9


@pytest.fixture
def choir(app: Celery) -> Callable[..., AsyncResult]:
    """`choir(3)`: send a chord of so many parts."""

    def send(parts: int, **options: Any) -> AsyncResult:
        header = [app.signature("choir.part", (index,), options) for index in range(parts)]
        return chord(header, app.signature("choir.body"), app=app)()

    return send


@pytest.fixture
def singers(worker: Any, proxy: FaultProxy, app: Celery) -> Callable[..., Worker]:
    """A worker whose results go through the proxy, or do not."""

    def start(
        *, proxied: bool = True, ordered: bool = True, dedupe: bool = False, **settings: Any
    ) -> Worker:
        conf = {
            "result_backend_transport_options": {"result_chord_ordered": ordered},
            "worker_deduplicate_successful_tasks": dedupe,
        }
        url = proxy.url() if proxied else app.conf.broker_url
        return worker(app="choirs", result_url=url, conf=conf, options=OPTIONS, **settings)

    return start


def jobs(db: Database) -> int:
    return db.length() + sum(map(len, db.held().values()))


def left_of(body: AsyncResult, client: redis.Redis) -> list[str]:
    """What is left of a chord; that it is done is known for a while, as in Celery 5.7."""
    keys = [key.decode() for key in client.keys(f"*{body.parent.id}*")]
    return [key for key in keys if not (key.endswith(".c") and client.ttl(key) > 0)]


@pytest.fixture
def heard(singers: Any, choir: Any, ledger: Ledger, db: Database) -> Callable[..., Worker]:
    """A worker that has sung before: from here on the server knows the scripts."""

    def start(**settings: Any) -> Worker:
        one: Worker = singers(**settings)
        ledger.release()
        choir(2).get(timeout=30)
        ledger.clear()
        eventually(db.settled)
        return one

    return start


@pytest.fixture
def kill_counted(
    heard: Any, singers: Any, choir: Any, proxy: FaultProxy, ledger: Ledger, db: Database
) -> Callable[..., AsyncResult]:
    """Of two parts one is killed after it was counted. Both run again elsewhere, that one first."""

    def kill(**settings: Any) -> AsyncResult:
        victim, body = heard(**settings), choir(2)
        eventually(lambda: len(ledger.starts()) == 2)
        ends = (b"EXEC", b"EVALSHA")
        counted = proxy.hold_at(lambda words: words[0] in ends, 2, carried_out=True)
        ledger.release("part 0")
        assert counted.wait(30)
        victim.kill9_all()
        singers(proxied=False, **settings)
        eventually(lambda: ledger.runs().get("part 1") == 2 and jobs(db) == 1)
        ledger.release()
        return body

    return kill


@pytest.mark.parametrize("ordered", [True, False])
def test_a_part_that_runs_again_counts_once_and_its_second_result_goes(
    kill_counted, ledger, db, ordered
):
    body = kill_counted(ordered=ordered)
    found = body.get(timeout=60)
    last = {line["job"]: line["pid"] for line in ledger.lines("started")}
    assert sorted(found) == [[index, last[f"part {index}"]] for index in range(2)]
    eventually(db.settled)
    assert ledger.runs() == {"part 0": 2, "part 1": 2, "body": 1}
    assert left_of(body, db.client) == []


@pytest.mark.parametrize("without", ["", "completing"])
def test_a_part_that_celery_does_not_run_again_counts_all_the_same(
    heard, singers, choir, proxy, ledger, db, without
):
    """It has its result, by ``worker_deduplicate_successful_tasks``, and died before it counted.

    The control: the body waits for ever.
    """
    settings = {"dedupe": True, "env": {"WITHOUT": without}}
    victim, body = heard(**settings), choir(2)
    eventually(lambda: len(ledger.starts()) == 2)
    stored = proxy.hold_at(lambda words: words[0] == b"EVALSHA", carried_out=False)
    ledger.release("part 0")
    assert stored.wait(30)
    victim.kill9_all()
    singers(proxied=False, **settings)
    ledger.release()
    eventually(db.settled, 60)
    assert ledger.runs() == {"part 0": 1, "part 1": 2, **({} if without else {"body": 1})}
    if not without:
        assert [index for index, _ in body.get(timeout=30)] == [0, 1]
        assert left_of(body, db.client) == []


@pytest.mark.skipif(CELERY_57, reason="from 5.7 on Celery counts parts, and not runs")
@pytest.mark.parametrize("ordered", [True, False])
def test_the_control_counts_runs(kill_counted, ordered):
    body = kill_counted(ordered=ordered, env={"WITHOUT": "chord_counts"})
    assert [index for index, _ in body.get(timeout=60)] == [0, 0]


@pytest.fixture
def kill_completing(
    heard: Any, singers: Any, choir: Any, proxy: FaultProxy, ledger: Ledger, db: Database
) -> Callable[..., tuple[AsyncResult, threading.Event, bool]]:
    """The last part is killed before one of its commands, and runs again: whether it came so far,
    and whether it had sent the body."""

    def kill(
        point: int, dies: str = "worker", **settings: Any
    ) -> tuple[AsyncResult, threading.Event, bool]:
        victim, seen = heard(concurrency=1, **settings), []
        ledger.release("part 0")
        body = choir(2)
        eventually(lambda: ledger.starts().get("part 1") and jobs(db) == 1)

        def is_point(words: Words) -> bool:
            name = words[0].decode().upper()
            seen.append(name)
            return name in POINTS

        reached = proxy.hold_at(is_point, point, carried_out=False)
        ledger.release()
        eventually(lambda: reached.is_set() or ledger.starts().get("body"))
        sent = seen.count("EVALSHA") == 2  # it is before the script that clears up
        if dies == "child":
            victim.kill9_child()
        else:
            victim.kill9_all()
            singers(proxied=False, **settings)
        return body, reached, sent

    return kill


@pytest.mark.parametrize("dies", ["worker", "child"])
@pytest.mark.parametrize("point", range(1, MOST + 1))
def test_the_part_that_completes_its_chord_may_be_killed_anywhere(
    kill_completing, ledger, db, point, dies
):
    body, reached, sent = kill_completing(point, dies)
    found = body.get(timeout=60)
    assert [index for index, _ in found] == [0, 1]
    eventually(db.settled)
    assert ledger.runs()["part 0"] == 1
    # What was sent once is sent again by the part that runs again.
    assert ledger.runs()["body"] <= 1 + (sent and reached.is_set())
    assert left_of(body, db.client) == []


@pytest.mark.skipif(not CELERY_57, reason="before 5.7 Celery has no lease")
def test_the_control_nobody_publishes_the_body(kill_completing, ledger, db):
    """The run that was killed has a lease on it for 6 s, and the next one is over by then."""
    body, reached, _ = kill_completing(4, env={"WITHOUT": "chord_counts"})
    assert reached.is_set()
    eventually(lambda: ledger.runs().get("part 1") == 2 and db.settled())
    assert body.state == "PENDING"
    assert "body" not in ledger.starts()


@pytest.mark.skipif(not CELERY_57, reason="before 5.7 Celery lets it run again")
def test_the_control_a_part_that_lost_its_child_is_not_counted(kill_completing, ledger, db):
    """Its result was stored, and so Celery acks it."""
    body, reached, _ = kill_completing(3, "child", env={"WITHOUT": "second_runs"})
    assert reached.is_set()
    eventually(db.settled)
    assert body.state == "PENDING"
    assert ledger.runs() == {"part 0": 1, "part 1": 1}


def send_deadly(app: Celery) -> AsyncResult:
    parts = [app.signature("choir.deadly", (index,)) for index in range(2)]
    body = app.signature("choir.body").on_error(app.signature("choir.errback"))
    return chord(parts, body, app=app)()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_part_that_kills_whoever_collects_fails_its_chord_by_its_name(
    supervised, app, ledger, db, pool
):
    """Its result is stored, and yet nobody waits for ever."""
    supervisor = supervised(app="choirs", pool=pool, concurrency=1)
    body = send_deadly(app)
    supervisor.until(body.ready)
    with pytest.raises(ChordError, match=r"Dependency .* raised PoisonPill") as raised:
        body.get()
    [dead] = db.dead()
    assert dead["task_id"] in str(raised.value)
    assert AsyncResult(dead["task_id"], app=app).state == "SUCCESS"
    eventually(db.settled)
    assert [line["job"] for line in ledger.lines("errback")] == [body.id]
    assert "body" not in ledger.starts()
    assert supervisor.restarts == (0 if pool == "prefork" else 3)


def test_the_control_its_chord_waits_for_ever(worker, app, db):
    worker(app="choirs", concurrency=1, env={"WITHOUT": "ends_of_chords"})
    body = send_deadly(app)
    eventually(lambda: db.dead() and not db.client.exists("superfetch:dead:unannounced"), 60)
    eventually(db.settled)
    assert body.state == "PENDING"


@pytest.mark.parametrize("unknown", ["requeue", "discard"])
def test_a_part_that_nobody_knows_fails_its_chord_by_its_name(worker, app, ledger, db, unknown):
    worker(app="choirs", options={"unknown_tasks": unknown})
    ledger.release()
    parts = [app.signature("choir.part", (0,)), app.signature("no.such")]
    body = chord(parts, app.signature("choir.body"), app=app)()
    eventually(body.ready)  # `get` would raise what its part has
    assert isinstance(body.result, ChordError)
    named = f"Dependency {body.parent.results[1].id} raised Task of kind 'no.such' never registered"
    assert named in str(body.result)
    eventually(db.settled)


def test_tasks_that_have_a_backend_of_their_own_count_so_too(url):
    before = Celery("before", broker=url, backend=url, set_as_current=False)
    own = before._get_backend()

    @before.task(shared=False, backend=own)
    def part() -> None: ...

    assert before.backend.client  # it is there before the package is
    install(before)
    before.finalize()
    for backend in (before.backend, part.backend, before._get_backend()):
        assert vars(backend)["on_chord_part_return"].__func__ is on_chord_part_return
    stock = Celery("stock", broker=url, backend=url, set_as_current=False)
    assert "on_chord_part_return" not in vars(stock.backend)


def test_a_group_with_a_part_that_has_failed_as_a_full_server_does_fails_the_body(
    singers, app, ledger
):
    """Before 5.7 Celery raises the part's error while the parts are joined: it was taken for a
    refusal of the result server, and the job that completes the chord ran again for ever."""
    singers(proxied=False, pool="threads", concurrency=4)
    ledger.release()
    parts = [app.signature("choir.part", (index,), immutable=True) for index in range(4)]
    failing = app.signature("choir.refused", immutable=True)
    inner = chord(parts[:2], group([parts[2], failing], app=app), app=app)
    body = chord([inner, parts[3]], app.signature("choir.body"), app=app)()
    with pytest.raises(ChordError):
        app.AsyncResult(body.id).get(timeout=30)
