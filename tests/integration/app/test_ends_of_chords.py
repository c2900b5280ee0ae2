"""The part that completes a chord, in the process that runs it: the body gets what all parts have
returned, or fails, also if the job is lost or the result server refuses commands meanwhile."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any

import celery
import pytest
from celery import Celery, chain, chord, group, signals
from celery.exceptions import ChordError, Ignore, Reject
from celery.result import AsyncResult
from kombu.utils.json import loads
from redis.exceptions import ResponseError

from celery_superfetch.app import chords, patient_calls, result_backends, task_hooks
from celery_superfetch.app.chords import COUNT, END
from celery_superfetch.app.notice import Notices, Postponed
from celery_superfetch.model.step import ids_of, running
from celery_superfetch.store.redis.server import FULL_TEXT
from support.recipes import nobodys_current_app
from support.servers.faults import busy
from support.servers.proxy import FaultProxy, Words
from support.servers.server import Server
from support.workers.bench import Bench
from support.workers.one_process import MAIL, NEXT, Pool, raised

CELERY_57 = celery.VERSION >= (5, 7)
GROUP = (b"GET", b"taskset")  # the first that is read after a part was counted
FLAT = (b"ZRANGE", b"")
JOIN = (b"MGET", b"")
FORKS = pytest.mark.skipif(
    not CELERY_57, reason="before 5.7 Celery waits for a group at the end of a chain for ever"
)


@pytest.fixture
def results(fresh_server: Callable[..., Server]) -> Iterator[tuple[Server, FaultProxy]]:
    server = fresh_server()
    with FaultProxy(server.port) as proxy:
        yield server, proxy


def set_up(app: Celery, bench: Bench) -> Pool:
    app.conf.task_default_queue = MAIL
    app.set_current()

    @app.task(name="note", shared=False)
    def note(value: Any = None) -> Any:
        return value

    @app.task(name="fails", shared=False)
    def fails() -> None:
        raise ValueError("on purpose")

    @app.task(name="is refused", shared=False)
    def is_refused() -> None:
        raise ResponseError(f"OOM {FULL_TEXT}")

    return Pool(app, bench)


@pytest.fixture
def make_pool(make_app: Callable[..., Celery], bench: Bench, results: Any) -> Iterator[Any]:
    conf = {"result_backend": results[1].url()}
    with nobodys_current_app():
        yield lambda: set_up(make_app(conf=conf), bench)


@pytest.fixture
def pool(make_pool: Callable[[], Pool]) -> Pool:
    return make_pool()


def part(pool: Pool, value: int) -> Any:
    return pool.app.signature("note", (value,))


def send(pool: Pool, *parts: Any) -> AsyncResult:
    """Send a chord, and run all of its parts but the last."""
    body = pool.app.signature("note").set(queue=NEXT)
    body.link_error(pool.app.signature("errback").set(queue=NEXT))
    sent = chord(parts, body, app=pool.app).apply_async()
    while len(pool.bench.queue(MAIL)) > 1:
        pool.run(pool.take())
    return sent


def names(pool: Pool) -> list[str]:
    return [loads(raw)["headers"]["task"] for raw in pool.bench.queue(NEXT)]


def given(pool: Pool) -> Any:
    """What the body is called with."""
    [raw] = pool.bench.queue(NEXT)
    args, _, _ = loads(base64.b64decode(loads(raw)["body"]))
    return args[0]


def before(proxy: FaultProxy, command: tuple[bytes, bytes], act: Callable[[], None]) -> None:
    """Act before the result server gets a command, once."""
    name, key = command
    left = [act]

    def is_it(words: Words) -> bool:
        if left and words[0] == name and key in words[1]:
            left.pop()()
        return False

    proxy.hold_at(is_it, carried_out=True)


def busy_for_2s(server: Server) -> None:
    script = busy(server)
    script.__enter__()
    threading.Timer(2, script.__exit__, (None, None, None)).start()


def lose_and_run_again(pool: Pool) -> None:
    """As who freezes, is declared dead, and ends when its job is another's; and as that one."""
    lost, private = pool.take(), pool.bench.keys.private(pool.owner.owner)
    pool.bench.client.rename(private, "aside")
    raised(pool.run(lost), Ignore)
    assert not pool.sent()
    pool.bench.client.rename("aside", private)
    pool.run(lost)


def test_a_chord_whose_failure_a_lost_run_could_not_publish_fails_in_the_next(pool):
    body = send(pool, pool.app.signature("fails"), part(pool, 1))
    lose_and_run_again(pool)
    assert names(pool) == ["errback"]
    assert isinstance(body.result, ChordError)


@pytest.mark.skipif(not CELERY_57, reason="before 5.7 Celery keeps the chord's size")
def test_the_control_its_body_waits_for_ever(make_pool, monkeypatch):
    monkeypatch.setattr(result_backends, "count_parts_once", lambda backend: None)
    pool = make_pool()
    body = send(pool, pool.app.signature("fails"), part(pool, 1))
    lose_and_run_again(pool)
    assert not pool.sent()
    assert body.state == "PENDING"


def test_a_chord_whose_failure_the_result_server_refuses_fails_in_the_next_run(
    pool, results, monkeypatch
):
    server, proxy = results
    monkeypatch.setattr(patient_calls, "PATIENCE_S", -1.0)
    body = send(pool, pool.app.signature("fails"), part(pool, 1))
    last, control = pool.take(), server.client()
    before(proxy, FLAT, lambda: control.config_set("maxmemory", "1"))
    assert "could not store its result" in raised(pool.run(last), Reject).reason
    control.config_set("maxmemory", "0")
    pool.run(last)
    assert names(pool) == ["errback"], "once"
    assert isinstance(body.result, ChordError)


def fork(pool: Pool, *parts: Any) -> Any:
    """A part that is a group; Celery would take a group itself for so many parts."""
    return chain(pool.app.signature("note"), group([part.set(immutable=True) for part in parts]))


def nested(pool: Pool) -> list[Any]:
    return [fork(pool, part(pool, 0), part(pool, 1)), part(pool, 2)]


@pytest.mark.parametrize(
    ("header", "command", "expected"),
    [
        (lambda pool: [part(pool, 0), part(pool, 1)], GROUP, [0, 1]),
        (lambda pool: [part(pool, 0), part(pool, 1)], FLAT, [0, 1]),
        pytest.param(nested, GROUP, [[0, 1], 2], marks=FORKS),
        pytest.param(nested, JOIN, [[0, 1], 2], marks=FORKS),
    ],
    ids=["group", "results", "group of groups", "results of groups"],
)
def test_what_the_parts_have_returned_is_read_when_the_result_server_is_busy_no_more(
    pool, results, header, command, expected
):
    server, proxy = results
    body = send(pool, *header(pool))
    before(proxy, command, partial(busy_for_2s, server))
    pool.run(pool.take())
    assert body.state == "PENDING"
    assert given(pool) == expected


@FORKS
def test_a_part_without_a_result_is_looked_for_when_the_result_server_is_busy_no_more(
    pool, results
):
    """After the others, with no patience: the body failed."""
    server, proxy = results
    silent = part(pool, 2).set(task_id="silent", ignore_result=True)
    body = send(pool, nested(pool)[0], silent)
    before(proxy, (b"GET", b"silent"), partial(busy_for_2s, server))
    pool.run(pool.take())
    assert body.state == "PENDING"
    assert given(pool) == [[0, 1], None]


#: What the end of a chord needs of the result server.
CALLS: dict[str, Callable[[Words], bool]] = {
    "count": lambda words: words[:2] == [b"EVALSHA", COUNT.sha.encode()],
    "end": lambda words: words[:2] == [b"EVALSHA", END.sha.encode()],
    "group": lambda words: words[0] == GROUP[0] and GROUP[1] in words[1],
    "results": lambda words: words[0] == FLAT[0],
}


def end_of_a_cut_part(pool: Pool, results: Any, call: str, *, reply_lost: bool) -> tuple[Any, ...]:
    """What becomes of a chord whose last part loses its connection: the states of the part and of
    the body, and what is sent."""
    server, proxy = results
    body = send(pool, part(pool, 0), part(pool, 1))
    last = pool.take()
    for script in (COUNT, END):
        server.client().script_load(script.script)
    cut = proxy.cut_at(CALLS[call], reply_lost=reply_lost)
    pool.run(last)
    assert cut.is_set()
    task_id = loads(last.job.payload)["headers"]["id"]
    return AsyncResult(task_id, app=pool.app).state, body.state, names(pool)


@pytest.mark.parametrize("reply_lost", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize("call", CALLS)
def test_a_lost_connection_to_the_result_server_fails_no_chord(pool, results, call, reply_lost):
    """Of a part that was counted Celery stored a failure, or the body of a chord failed, although
    all of its parts had succeeded."""
    ended = end_of_a_cut_part(pool, results, call, reply_lost=reply_lost)
    assert ended == ("SUCCESS", "PENDING", ["note"])
    assert given(pool) == [0, 1]


@pytest.mark.parametrize("call", CALLS)
def test_the_control_a_lost_connection_fails_a_chord(pool, results, monkeypatch, call):
    monkeypatch.setattr(patient_calls, "AWAY", ())
    _, body, sent = end_of_a_cut_part(pool, results, call, reply_lost=False)
    assert body == "FAILURE"
    assert sent[-1] == "errback"


@pytest.mark.parametrize("cut_off", ["", "control"])
def test_a_success_is_stored_where_the_idle_connection_was_closed(
    pool, results, monkeypatch, cut_off
):
    """Celery reads the present result before it stores one: it did not read it again, and stored
    the job's failure."""
    _, proxy = results
    if cut_off:
        monkeypatch.setattr(result_backends, "_once_more_if_cut", lambda call: call())
    sent = part(pool, 1).apply_async()
    assert sent.state == "PENDING"  # it is connected
    cut = proxy.cut_at(lambda words: words[0] == b"GET", reply_lost=False)
    pool.run(pool.take())
    assert cut.is_set()
    assert sent.state == ("FAILURE" if cut_off else "SUCCESS")


def chord_of(pool: Pool, *header: Any) -> Any:
    """A chord whose messages go to another queue."""
    note = pool.app.signature("note", (1,), immutable=True).set(queue=NEXT)
    body = pool.app.signature("note", immutable=True).set(queue=NEXT)
    return chord(header or [note, note.clone()], body, app=pool.app)


def groups(pool: Pool) -> list[Any]:
    """A header with a group in it: then Celery stores the group of a chord."""
    note = pool.app.signature("note", (1,), immutable=True).set(queue=NEXT)
    return [chain(note, group([note.clone(), note.clone()])), note.clone()]


#: The commands by which Celery stores the size of a chord, and its group.
SIZE = (b"DEL", b".c") if CELERY_57 else (b"SETEX", b".s")
STORED_GROUP = (b"SET" if CELERY_57 else b"SETEX", b"taskset")


def full_for_2s(server: Server) -> None:
    server.client().config_set("maxmemory", "1")
    threading.Timer(2, lambda: server.client().config_set("maxmemory", "0")).start()


@pytest.mark.parametrize("shape", ["next link", "body"])
@pytest.mark.parametrize(
    ("header", "command", "sent"),
    [
        (lambda pool: [], SIZE, 2),
        pytest.param(groups, STORED_GROUP, 2, marks=FORKS),
    ],
    ids=["size", "group"],
)
def test_a_chord_at_the_end_of_a_job_is_sent_when_the_result_server_is_full_no_more(
    pool, results, shape, header, command, sent
):
    """The job was stored as failed, and its chord never sent."""
    server, proxy = results
    follows = chord_of(pool, *header(pool))
    job = pool.app.signature("note", (0,), immutable=True)
    whole = chain(job, follows) if shape == "next link" else chord([job], follows, app=pool.app)
    whole.apply_async()
    before(proxy, command, partial(full_for_2s, server))
    last = pool.take()
    assert pool.run(last)[:2] == (0, "0")
    assert len(names(pool)) == sent
    assert AsyncResult(loads(last.job.payload)["headers"]["id"], app=pool.app).state == "SUCCESS"


def test_a_job_whose_chord_cannot_be_stored_in_time_is_requeued(pool, results, monkeypatch):
    """And what a receiver of ``task_postrun`` sends then is no step."""
    server, proxy = results
    monkeypatch.setattr(patient_calls, "PATIENCE_S", -1.0)
    publishing = []

    def receive(**_: Any) -> None:
        publishing.append(running.get().publishes_followers)

    signals.task_postrun.connect(receive)
    try:
        chain(pool.app.signature("note", (0,)), chord_of(pool), app=pool.app).apply_async()
        before(proxy, SIZE, lambda: server.client().config_set("maxmemory", "1"))
        job = pool.take()
        assert "could not store the size of a chord" in raised(pool.run(job), Reject).reason
        server.client().config_set("maxmemory", "0")
        pool.run(job)
    finally:
        signals.task_postrun.disconnect(receive)
    assert names(pool) == ["note", "note"], "once"
    assert publishing == [False, False]


@FORKS
@pytest.mark.parametrize("task", ["fails", "is refused"])
def test_a_group_with_a_part_that_has_failed_fails_the_body(pool, task):
    """Also if it says what a server says that refuses for a while: it did not say it here."""
    body = send(pool, fork(pool, part(pool, 0), pool.app.signature(task)), part(pool, 2))
    pool.run(pool.take())
    assert names(pool) == ["errback"]
    assert isinstance(body.result, ChordError)


def test_a_body_that_the_broker_refuses_for_long_is_sent_by_the_next_run(
    make_app, fresh_server, url, monkeypatch
):
    """It was tried again without a limit: if its publish lease ran out meanwhile, the body was
    sent, and the chord was never ended."""
    monkeypatch.setattr(task_hooks, "PATIENCE_S", 2.0)
    server = fresh_server()
    broker = server.client()
    with nobodys_current_app():
        app = make_app(url=server.url(), result_url=url)
        pool = set_up(app, Bench(broker))
        sent = send(pool, part(pool, 0), part(pool, 1))
        last = pool.take()
        broker.config_set("min-replicas-to-write", "1")
        began = monotonic()
        assert "could not publish note" in raised(pool.run(last), Reject).reason
        assert monotonic() - began >= 2
        broker.config_set("min-replicas-to-write", "0")
        pool.run(last)
        left = app.backend.client.keys(f"*{sent.parent.id}*")
        assert [key for key in left if not key.endswith(b".c")] == [], "it is ended"
        pool.run(last)
        assert given(pool) == [0, 1], "once"
    assert sent.state == "PENDING"


# -- a part that is dead-lettered


def body_of(app: Celery, kind: str) -> Any:
    note = app.signature("note", immutable=True).set(queue=NEXT)
    body = group([note, note.clone()], app=app) if kind == "group" else note
    # Before 5.7 Celery does not publish what ``link_error`` of a group has linked.
    return body.set(link_error=[app.signature("errback").set(queue=NEXT)])


#: Kinds of bodies. A task and the first link of a chain are one message.
BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "task": lambda app, note: note,
    "group": lambda app, note: group([note, note.clone()], app=app),
    "chain": lambda app, note: chain(note, note.clone(), app=app),
    "chain in a chain": lambda app, note: chain(chain(note, note.clone(), app=app), app=app),
    "chord": lambda app, note: chord([note, note.clone()], note.clone(), app=app),
}


class Killed(BaseException):
    """In the place of a kill."""


@pytest.mark.parametrize("published", [True, False], ids=["", "control"])
@pytest.mark.parametrize("inner", [False, True], ids=["", "in a chord"])
@pytest.mark.parametrize("kind", BODIES)
def test_a_notice_fails_no_chord_whose_body_was_published(
    pool, monkeypatch, kind, inner, published
):
    """The part that had published it was killed before it ended the chord, and moved to the dead
    set: the body was stored as failed, and its errbacks were sent, while it ran. A body of several
    messages fails, since some may not have been published."""
    if "chain" in kind and not published and celery.VERSION < (5, 6):
        pytest.skip("Celery 5.5 stores no failure of a chain, which has no id there")
    note = pool.app.signature("note", immutable=True).set(queue=NEXT)
    errback = pool.app.signature("errback").set(queue=NEXT)
    body = BODIES[kind](pool.app, note)
    sent = chord([part(pool, 0), part(pool, 1)], body.on_error(errback), app=pool.app)
    if inner:
        sent = chord([sent, part(pool, 2).set(queue="aside")], note.clone(), app=pool.app)
    sent.apply_async()
    pool.run(pool.take())
    last = pool.take()

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(chords, "_end" if published else "_publish", kill)
    with pytest.raises(Killed):
        pool.run(last)
    monkeypatch.undo()
    before_notice = names(pool)
    assert bool(before_notice) == published
    recovery, notice = pool.bench.recovery(last.job), Notices(pool.app)(MAIL)
    pool.bench.run(pool.bench.dead_set.kill_call(recovery, marked=False, notice=notice))
    assert pool.run(pool.take())[0] == 0
    assert not pool.bench.untold()
    _, _, embed = loads(base64.b64decode(loads(last.job.payload)["body"]))
    states = {AsyncResult(id, app=pool.app).state for id in ids_of(embed["chord"])}
    if published and kind in ("task", "chain", "chain in a chain"):
        assert (names(pool), states) == (before_notice, {"PENDING"})
    else:
        assert "FAILURE" in states


@pytest.mark.parametrize("body", ["task", "group"])
def test_a_notice_ends_when_the_broker_has_the_errbacks_of_its_chord(
    make_app, fresh_server, url, body
):
    """Celery takes the refusal for the body's failure. The notice is parked, and tried later."""
    server = fresh_server()
    control = server.client()
    with FaultProxy(server.port) as proxy, nobodys_current_app():
        app = make_app(url=proxy.url(), result_url=url)
        pool = set_up(app, Bench(control))
        chord([part(pool, 0), part(pool, 1)], body_of(app, body), app=app).apply_async()
        for claimed in (pool.take(), pool.take()):
            recovery, notice = pool.bench.recovery(claimed.job), Notices(app)(MAIL)
            pool.bench.run(pool.bench.dead_set.kill_call(recovery, marked=False, notice=notice))
        first, second = pool.take(), pool.take()
        assert pool.run(first)[0] == 0

        is_over: list[bool] = []

        def is_errback(words: Words) -> bool:
            if not is_over and any(b"errback" in word for word in words):
                control.config_set("min-replicas-to-write", "1")
            return False

        proxy.hold_at(is_errback, carried_out=True)
        failed, error, _ = pool.run(second)
        assert failed
        assert isinstance(getattr(error.exception, "exc", error.exception), Postponed)
        assert len(pool.bench.untold()) == 1
        assert not pool.sent()
        is_over.append(True)
        control.config_set("min-replicas-to-write", "0")
        assert pool.run(second)[0] == 0
        assert names(pool) == ["errback"] * len(pool.sent()) != []
        assert not pool.bench.untold()
