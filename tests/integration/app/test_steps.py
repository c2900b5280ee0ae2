"""What the end of a job sends, in the process that runs it: once in all runs of the job, and only
while that is its own. `tests/evidence/test_handed_on.py` has the same with workers and kills."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request
from kombu.exceptions import EncodeError
from kombu.transport.virtual import Message
from kombu.utils.json import loads

from celery_superfetch.app.steps import run
from celery_superfetch.model.step import Claim
from support.recipes import nobodys_current_app
from support.servers.proxy import FaultProxy
from support.workers.bench import Bench, payload
from support.workers.one_process import MAIL, NEXT, Pool, raised


@pytest.fixture
def pool(make_app: Callable[..., Celery], bench: Bench, url: str) -> Iterator[Pool]:
    with nobodys_current_app():
        app = make_app(result_url=url)
        app.conf.task_default_queue = MAIL
        app.set_current()
        yield add_tasks(Pool(app, bench))


def add_tasks(pool: Pool) -> Pool:
    app = pool.app

    def task(**options: Any) -> Callable[..., Any]:
        return app.task(shared=False, bind=True, max_retries=1, **options)

    @task(name="note")
    def note(self: Any, *args: Any) -> str:
        pool.seen.append({**self.request.superfetch, "headers": self.request.headers})
        return "noted"

    @task(name="fails")
    def fails(self: Any) -> None:
        raise ValueError("on purpose")

    @task(name="odd")
    def odd(self: Any) -> object:
        return object()  # which is no JSON

    @task(name="again")
    def again(self: Any) -> None:
        raise self.retry(countdown=0, queue=NEXT)

    @task(name="replaced")
    def replaced(self: Any, *by: Any) -> None:
        raise self.replace(chain(map(app.signature, by)) if by else job(app).set(queue=NEXT))

    @task(name="replaced by parts")
    def parts(self: Any, *parts: Any) -> None:
        raise self.replace(group(map(app.signature, parts)))

    @task(name="sends")
    def sends(self: Any) -> None:
        job(app).set(queue=NEXT).apply_async()
        self.apply_async(queue=NEXT)

    return pool


def job(app: Celery, name: str = "note", *args: Any, **options: Any) -> Any:
    return app.signature(name, args, immutable=True).set(**options)


def links(app: Celery) -> list[Any]:
    return [job(app, queue=NEXT), job(app, queue=NEXT)]


def twins(app: Celery) -> list[Any]:
    link = job(app, queue=NEXT)
    link.freeze()
    return [link, link]


#: What a job sends at its end -> how, and how many messages it is.
KINDS: dict[str, tuple[Callable[[Celery], Any], int]] = {
    "chain": (lambda app: chain(job(app), *links(app)).apply_async(), 1),
    "callbacks": (lambda app: job(app).apply_async(link=links(app)), 2),
    "callback with its own correlation id": (
        lambda app: job(app).apply_async(link=job(app, queue=NEXT, correlation_id="trace-1")),
        1,
    ),
    "group": (lambda app: chain(job(app), group(links(app))).apply_async(), 2),
    "group of twins": (lambda app: chain(job(app), group(twins(app))).apply_async(), 2),
    "chord": (lambda app: chain(job(app), chord(links(app), job(app))).apply_async(), 2),
    "body": (lambda app: chord([job(app)], job(app, queue=NEXT)).apply_async(), 1),
    "errbacks": (lambda app: job(app, "fails").apply_async(link_error=links(app)), 2),
    "retry": (lambda app: job(app, "again").apply_async(), 1),
    "replacement": (lambda app: job(app, "replaced").apply_async(), 1),
    "chain instead": (lambda app: job(app, "replaced", *links(app)).apply_async(), 1),
}
OVER = ("retry", "replacement", "chain instead")  # nothing of such a job is left to do


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_sent_once_in_all_runs_of_its_job(pool, kind):
    send, count = KINDS[kind]
    send(pool.app)
    first = pool.take()
    pool.run(first)
    sent = pool.sent()
    assert len(sent) == count
    pool.run(first)  # as who is cut short before his ack, and runs again under the same claim
    assert pool.sent() == sent
    pool.bench.requeue(first.job)
    again = pool.take()
    answer = pool.run(again)
    assert pool.sent() == sent
    if kind in OVER:
        assert "an earlier run published its retry" in str(raised(answer, Ignore))
    assert len(pool.bench.private(pool.owner)) == 1, "its ack, or its death, is to come"


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_lost_his_job_sends_nothing(pool, kind):
    send, _ = KINDS[kind]
    send(pool.app)
    lost = pool.take()
    pool.bench.client.delete(pool.bench.keys.private(pool.owner.owner))
    said = str(raised(pool.run(lost), Ignore))
    assert "which may run elsewhere: this run sends no further message" in said
    assert not pool.sent()


def test_a_database_by_another_name_is_the_same(pool):
    """broker_write_url names another host, or another user, than broker_read_url."""
    chain(job(pool.app), *links(pool.app)).apply_async()
    claimed = pool.take()
    for _ in range(2):
        pool.run(claimed, database="another name")
    assert len(pool.sent()) == 1
    pool.bench.client.delete(pool.bench.keys.private(pool.owner.owner))
    assert "which may run elsewhere" in str(raised(pool.run(claimed, database="another"), Ignore))


def test_to_another_database_each_run_sends_its_message(pool):
    chain(job(pool.app), *links(pool.app)).apply_async()
    claimed = pool.take()
    for _ in range(2):
        pool.run(claimed, database="another", private=pool.bench.keys.private("of another"))
    assert len(pool.sent()) == 2


@pytest.mark.parametrize("forbidden", ["-exists", "-@scripting"])
def test_a_user_that_may_not_publish_a_step_sends_each_and_is_warned(
    make_app, fresh_server, url, caplog, forbidden
):
    server = fresh_server()
    server.client().execute_command("ACL SETUSER plain on >pw ~* &* +@all", forbidden)
    with nobodys_current_app():
        app = make_app(url=server.url().replace("redis://", "redis://plain:pw@"), result_url=url)
        app.conf.task_default_queue = MAIL
        app.set_current()
        pool = add_tasks(Pool(app, Bench(server.client())))
        chain(job(app), *links(app)).apply_async()
        claimed = pool.take()
        for _ in range(2):
            assert pool.run(claimed, database="of a user that may")[0] == 0
    assert len(pool.sent()) == 2
    assert "may be published twice" in caplog.text


def test_what_a_task_sends_of_its_own_is_no_step(pool):
    """Itself, too: it only calls itself."""
    job(pool.app, "sends").apply_async()
    claimed = pool.take()
    for _ in range(2):
        pool.run(claimed)
    assert len(pool.sent()) == 4


def test_without_a_claim_all_is_sent_as_ever(pool):
    """With early ack it is over by then."""
    chain(job(pool.app), *links(pool.app)).apply_async()
    claimed = pool.take()
    for _ in range(2):
        assert pool.run(claimed, id="", database="", private="")[:2] == (0, "'noted'")
    assert len(pool.sent()) == 2


def test_a_task_sees_its_token_and_its_own_headers_alone(pool):
    job(pool.app).apply_async(headers={"mine": "one"}, compression="zlib")
    first = pool.take()
    pool.run(first)
    pool.bench.requeue(first.job)
    again = pool.take()
    pool.run(again)
    one, other = pool.seen
    assert one["headers"] == other["headers"] == {"mine": "one"}
    assert one["token"] == first.token < other["token"] == again.token
    assert not one["ended"]


def test_a_function_that_is_no_tracer_is_called_as_it_is():
    called = run(Claim("", "", "", 0), lambda *args, **named: (args, named), 1, b=2)
    assert called == ((1,), {"b": 2})


def test_a_job_that_cannot_begin_raises_as_celery_does(pool):
    """As an outcome of Celery's tracer, which stores and logs a failure before, it was acked, and
    nobody heard of it."""
    pool.bench.push(MAIL, payload("unknown", MAIL, task="nobody.knows"))
    claimed = pool.take()
    pool.app.tasks["nobody.knows"] = pool.app.tasks["note"]
    message = Message(loads(claimed.job.payload), channel=pool.channel)
    request = Request(message, app=pool.app, hostname="here")
    del pool.app.tasks["nobody.knows"]
    pool.claim = Claim("", "", "", 1)
    with pytest.raises(KeyError, match=r"nobody\.knows"):
        request.execute_using_pool(pool)


@pytest.mark.parametrize("kind", ["chain", "callbacks", "errbacks", "retry"])
def test_while_it_cannot_be_sent_a_job_is_not_done(make_app, bench, client, url, kind):
    place = client.connection_pool.connection_kwargs
    with FaultProxy(place["port"]) as proxy, nobodys_current_app():
        app = make_app(url=proxy.url(place["db"]), result_url=url)
        app.conf.update(task_default_queue=MAIL, task_publish_retry=False)
        app.set_current()
        pool = add_tasks(Pool(app, bench))
        KINDS[kind][0](app)
        claimed = pool.take()
        proxy.refuse()
        proxy.cut()
        answer = pool.run(claimed)
    rejection = raised(answer, Reject)
    assert rejection.requeue
    assert "could not publish" in rejection.reason
    assert not pool.sent()


def test_what_cannot_be_sent_for_another_reason_is_an_error_of_the_job(pool):
    """In another run it would be the same."""
    chain(job(pool.app, "odd"), pool.app.signature("note").set(queue=NEXT)).apply_async()
    failed, error, _ = pool.run(pool.take())
    assert failed == 1
    assert isinstance(getattr(error.exception, "exc", error.exception), EncodeError)
    assert not pool.sent()


def test_the_parts_by_which_a_job_is_replaced_are_new_in_each_run(pool):
    """Another run of it does not know of those of the first, and counts its own."""
    job(pool.app, "replaced by parts", *links(pool.app)).apply_async()
    claimed = pool.take()
    for runs in (1, 2):
        pool.run(claimed)
        assert len(set(pool.sent())) == 2 * runs


def test_outside_a_chord_celery_sees_to_what_has_its_result(pool):
    pool.app.conf.worker_deduplicate_successful_tasks = True
    pool.app.tasks["note"].apply_async()
    claimed = pool.take()
    pool.app.backend.store_result(loads(claimed.job.payload)["headers"]["id"], "noted", "SUCCESS")
    pool.run(claimed, steps="of an earlier run")
    assert pool.seen


@pytest.mark.parametrize("result", [None, "RETRY", "FAILURE", "SUCCESS"])
@pytest.mark.parametrize("kept", ["", "task", "header", "backend"])
def test_a_job_that_is_delivered_again_knows_whether_it_had_ended(pool, kept, result):
    """By its result, where somebody keeps that: not the task, nor this one job, nor rpc://, of
    which it could be read once."""
    task, backend = pool.app.tasks["note"], pool.app.backend
    task.apply_async(ignore_result=True if kept == "header" else None)
    first = pool.take()
    if result:
        value = "noted" if result == "SUCCESS" else ValueError("so")
        backend.store_result(loads(first.job.payload)["headers"]["id"], value, result)
    task.ignore_result, backend.persistent = kept == "task", kept != "backend"
    pool.bench.requeue(first.job)
    again = pool.take()
    pool.run(again, header=again.counters.as_header())
    [seen] = pool.seen
    assert seen["ended"] is (result in ("FAILURE", "SUCCESS") and not kept)


@pytest.mark.parametrize("later", [-60, 60])
def test_a_result_of_an_older_job_with_the_same_task_id_says_nothing(pool, later):
    """It was stored before this one was claimed the last time."""
    pool.app.tasks["note"].apply_async(task_id="report-7")
    first = pool.take()
    pool.app.backend.store_result("report-7", "noted", "SUCCESS")
    pool.bench.requeue(first.job)
    again = pool.take()
    claimed = again.counters.first_claimed_at
    assert abs(claimed - time.time()) < 60
    pool.run(again, header=again.counters.as_header(), since=claimed + later)
    [seen] = pool.seen
    assert seen["ended"] is (later < 0)


@pytest.mark.parametrize("result", [None, "FAILURE", "SUCCESS"])
def test_a_part_that_has_succeeded_counts_in_its_chord_and_does_not_run_again(pool, result):
    pool.app.conf.worker_deduplicate_successful_tasks = True
    chord([job(pool.app)], job(pool.app, queue=NEXT)).apply_async()
    part = pool.take()
    if result:
        value = "noted" if result == "SUCCESS" else ValueError("so")
        pool.app.backend.store_result(loads(part.job.payload)["headers"]["id"], value, result)
    answer = pool.run(part, steps="of an earlier run")
    assert (answer == (0, None, 0.0)) is (result == "SUCCESS")
    assert bool(pool.seen) is (result != "SUCCESS")
    assert len(pool.sent()) == 1, "the body"
