"""The many ways in which a task may send a message: which of these messages are steps of its job,
and which are the task's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import celery
import pytest
from celery import Celery, chord, signals
from celery.exceptions import Reject, Retry
from kombu.exceptions import OperationalError
from kombu.utils.json import loads

from support.recipes import nobodys_current_app
from support.servers.proxy import FaultProxy
from support.workers.bench import Bench
from support.workers.one_process import MAIL, NEXT, Pool, raised

MakePool = Callable[..., Pool]


@pytest.fixture
def make_pool(make_app: Callable[..., Celery], bench: Bench, url: str) -> Iterator[MakePool]:
    with nobodys_current_app():

        def make(**place: Any) -> Pool:
            app = make_app(result_url=url, **place)
            app.conf.update(task_default_queue=MAIL, task_publish_retry=False)
            app.set_current()
            return Pool(app, bench)

        yield make


@pytest.fixture
def pool(make_pool: MakePool) -> Pool:
    return make_pool()


def add(pool: Pool, run: Callable[..., Any], **options: Any) -> Any:
    return pool.app.task(name="job", shared=False, max_retries=3, **{"bind": True, **options})(run)


def note(app: Celery) -> Any:
    return app.signature("note", immutable=True).set(queue=NEXT)


def sent_by_runs(pool: Pool, **options: Any) -> list[list[str]]:
    """Send the job, and run it twice under one claim; what had been sent after each run."""
    pool.app.tasks["job"].apply_async(**options)
    claimed, found = pool.take(), []
    for _ in range(2):
        pool.run(claimed)
        found.append(pool.sent())
    return found


# -- a job's retry is a step, however the task retries


class Overrides(celery.Task):
    def retry(self, *args: Any, **options: Any) -> Any:
        return super().retry(*args, **{**options, "queue": NEXT})


class Returns(celery.Task):
    def retry(self, *args: Any, **options: Any) -> Any:
        return super().retry(*args, throw=False, **options)


class Catches(celery.Task):
    def retry(self, *args: Any, **options: Any) -> Any:
        try:
            return super().retry(*args, **options)
        except Retry as exc:
            return exc


class RetriesBefore(celery.Task):
    def before_start(self, *args: Any) -> None:
        raise self.retry(countdown=0, queue=NEXT)


class Wraps(celery.Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


def retries(self: Any) -> None:
    raise self.retry(countdown=0, queue=NEXT)


def retries_by_its_class(self: Any) -> None:
    raise celery.Task.retry(self, countdown=0, queue=NEXT)


def retries_and_goes_on(self: Any) -> str:
    self.retry(countdown=0, queue=NEXT, throw=False)
    return "done"


def retries_unbound() -> None:
    raise celery.current_app.tasks["job"].retry(countdown=0, queue=NEXT)


def retries_in_a_helper(self: Any) -> None:
    self.app.tasks["helper"](self)


def returns(self: Any) -> None:
    """Ends at once."""


def fails(self: Any) -> None:
    raise ValueError("on purpose")


AUTOMATIC = {"autoretry_for": (ValueError,), "retry_kwargs": {"countdown": 0, "queue": NEXT}}

#: How a task retries -> its body, and its options.
RETRIES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "raised": (retries, {}),
    "overridden": (retries, {"base": Overrides}),
    "automatic": (fails, AUTOMATIC),
    "automatic and overridden": (fails, {**AUTOMATIC, "base": Overrides}),
    "by its class": (retries_by_its_class, {}),
    "unbound": (retries_unbound, {"bind": False}),
    "in a helper": (retries_in_a_helper, {}),
    "throw=False": (retries_and_goes_on, {}),
    "an override returns": (retries, {"base": Returns}),
    "an override catches": (retries, {"base": Catches}),
    "before its start": (fails, {"base": RetriesBefore}),
    "custom __call__": (retries, {"base": Wraps}),
}


@pytest.mark.parametrize("way", RETRIES)
def test_a_retry_is_sent_once_in_all_runs(pool, way):
    @pool.app.task(name="helper", shared=False)
    def helper(task: Any) -> None:
        task.retry(countdown=0, queue=NEXT)

    run, options = RETRIES[way]
    add(pool, run, **options)
    assert sent_by_runs(pool, task_id="one") == [["one"], ["one"]]


@pytest.mark.parametrize("way", RETRIES)
def test_a_job_whose_retry_cannot_be_sent_runs_again(make_pool, bench, client, way):
    @pool_of_proxy
    def test(pool: Pool) -> None:
        @pool.app.task(name="helper", shared=False)
        def helper(task: Any) -> None:
            task.retry(countdown=0, queue=NEXT)

        run, options = RETRIES[way]
        add(pool, run, **options)

    answer = test(make_pool, client)
    assert raised(answer, Reject).requeue


def pool_of_proxy(prepare: Callable[[Pool], None]) -> Callable[..., Any]:
    """Run a job whose server goes away before; its answer."""

    def run(make_pool: MakePool, client: Any, **options: Any) -> Any:
        place = client.connection_pool.connection_kwargs
        with FaultProxy(place["port"]) as proxy:
            pool = make_pool(url=proxy.url(place["db"]))
            prepare(pool)
            pool.app.tasks["job"].apply_async(**options)
            claimed = pool.take()
            proxy.refuse()
            proxy.cut()
            return pool.run(claimed)

    return run


def test_with_throw_false_it_is_sent_before_the_body_goes_on(pool):
    found = []

    def run(self: Any) -> None:
        for _ in range(2):
            self.retry(countdown=0, queue=NEXT, throw=False)
            found.append(len(pool.sent()))

    add(pool, run)
    sent_by_runs(pool)
    assert found == [1, 2, 2, 2]


def test_a_retry_that_the_body_has_caught_is_sent_before_its_next_message(pool):
    """As Celery itself does: it sends the retry at once."""

    def run(self: Any) -> None:
        with suppress(Retry):
            self.retry(countdown=0, queue=NEXT)
        note(self.app).set(task_id="later").apply_async()

    add(pool, run)
    pool.app.tasks["job"].apply_async(task_id="one")
    pool.run(pool.take())
    oldest_first = [loads(raw)["headers"]["id"] for raw in pool.bench.queue(NEXT)]
    assert oldest_first == ["one", "later"]


# -- what a body sends by hand is none, even under the same ids


def sends_itself(self: Any) -> None:
    self.apply_async(task_id=self.request.id, queue=NEXT)


def sends_its_callback(self: Any) -> None:
    self.app.signature(self.request.callbacks[0]).apply_async()


def runs_inline(self: Any) -> None:
    self.app.tasks["helper"](self.request.callbacks[0])


def runs_eagerly(self: Any) -> None:
    self.app.tasks["helper"].apply((self.request.callbacks[0],))


class SendsAfterwards(celery.Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        sends_its_callback(self)
        return result


class Hooks(celery.Task):
    def on_success(self, *_: Any) -> None:
        sends_its_callback(self)


class SendsBefore(celery.Task):
    def before_start(self, *_: Any) -> None:
        sends_its_callback(self)


#: Who sends a job's callback by hand -> the job's body, and its options.
BY_HAND: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "body": (sends_its_callback, {}),
    "task called inline": (runs_inline, {}),
    "eager task": (runs_eagerly, {}),
    "custom __call__": (returns, {"base": SendsAfterwards}),
    "on_success": (returns, {"base": Hooks}),
    "before_start": (returns, {"base": SendsBefore}),
}


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("who", BY_HAND)
def test_a_callback_that_is_sent_by_hand_is_no_step(pool, who, has_id):
    """Each run sends it; that of the job's end is sent once."""

    @pool.app.task(name="helper", shared=False)
    def helper(callback: Any) -> None:
        pool.app.signature(callback).apply_async()

    run, options = BY_HAND[who]
    add(pool, run, **options)
    callback = note(pool.app).set(**({"task_id": "next"} if has_id else {}))
    first, second = sent_by_runs(pool, link=callback)
    if has_id:
        assert (first, second) == (["next"] * 2, ["next"] * 3)
    else:
        assert [len(set(first)), len(set(second))] == [2, 3], "each has an id of its own"
        assert [len(first), len(second)] == [2, 3]


def test_a_job_that_sends_itself_by_hand_does_so_in_each_run(pool):
    add(pool, sends_itself)
    assert sent_by_runs(pool, task_id="one") == [["one"], ["one"] * 2]


def test_receivers_send_by_hand(pool):
    """Also those that Celery calls while it publishes what follows the job."""

    def receive(sender: Any = None, **_: Any) -> None:
        if str(getattr(sender, "name", sender)) in ("note", "job"):
            pool.app.signature("received", task_id="next").set(queue=NEXT).apply_async()

    add(pool, returns)
    pool.app.tasks["job"].apply_async(link=note(pool.app).set(task_id="next"))
    claimed, found = pool.take(), []
    heard = [signals.after_task_publish, signals.task_success, signals.task_postrun]
    for signal in heard:
        signal.connect(receive)
    try:
        for _ in range(2):
            pool.run(claimed)
            tasks = (loads(raw)["headers"]["task"] for raw in pool.bench.queue(NEXT))
            found.append(Counter(tasks))
    finally:
        for signal in heard:
            signal.disconnect(receive)
    assert found == [{"note": 1, "received": 3}, {"note": 1, "received": 6}]


def test_an_errback_that_is_called_in_place_sends_by_hand(pool):
    @pool.app.task(name="errback", shared=False)
    def errback(request: Any, exc: Any, traceback: Any) -> None:
        note(pool.app).set(task_id="told").apply_async()

    add(pool, fails)
    links = [pool.app.signature("errback"), note(pool.app).set(task_id="told")]
    assert sent_by_runs(pool, link_error=links) == [["told"] * 2, ["told"] * 3]


def marks_itself_as_failed(self: Any) -> None:
    self.backend.mark_as_failure(self.request.id, ValueError("by hand"), request=self.request)


def marks_itself_as_failed_and_fails(self: Any) -> None:
    marks_itself_as_failed(self)
    raise ValueError("on purpose")


@pytest.mark.parametrize(
    ("body", "of_end"), [(marks_itself_as_failed, 0), (marks_itself_as_failed_and_fails, 1)]
)
def test_errbacks_of_a_failure_that_the_body_stores_are_sent_by_hand(pool, body, of_end):
    """Each run sends them; those of the job's end are sent once."""
    add(pool, body)
    found = sent_by_runs(pool, link_error=note(pool.app).set(task_id="told"))
    assert found == [["told"] * (1 + of_end), ["told"] * (2 + of_end)]


# -- an error of what user code sends is raised there


class Tries(celery.Task):
    """Its hooks tell what is raised where they send."""

    errors: list[str]

    def tries(self, *_: Any) -> None:
        try:
            note(self.app).apply_async()
        except OperationalError as exc:
            self.errors.append(type(exc).__name__)

    before_start = on_success = on_failure = after_return = tries


@pytest.mark.parametrize("body", [returns, fails])
def test_a_hook_whose_message_cannot_be_sent_gets_the_error(make_pool, client, body):
    errors: list[str] = []

    @pool_of_proxy
    def test(pool: Pool) -> None:
        add(pool, body, base=Tries, errors=errors)

    failed, *_ = test(make_pool, client)
    assert failed == (body is fails)
    assert errors == ["OperationalError"] * 3


# -- what Celery publishes elsewhere


def is_replaced(self: Any) -> None:
    raise self.replace(note(self.app))


def test_a_part_of_a_chord_is_replaced_once(pool):
    add(pool, is_replaced)
    chord([pool.app.signature("job")], note(pool.app))()
    part = pool.take()
    for _ in range(2):
        pool.run(part)
        [raw] = pool.bench.queue(NEXT)
        headers = loads(raw)["headers"]
        assert headers["id"] == headers["root_id"]


def is_replaced_by_a_chord(self: Any) -> None:
    raise self.replace(chord([note(self.app), note(self.app)], note(self.app)))


def test_a_job_that_a_chord_replaces_runs_again_if_a_part_cannot_be_sent(make_pool, client):
    """Its parts are no steps, since each run makes others; without them the job would be lost."""

    @pool_of_proxy
    def test(pool: Pool) -> None:
        add(pool, is_replaced_by_a_chord)

    assert raised(test(make_pool, client), Reject).requeue


@pytest.mark.skipif(celery.VERSION < (5, 6), reason="before 5.6 Celery publishes nothing then")
def test_what_celery_publishes_for_a_job_that_it_skips_is_published_once(pool):
    """Its result is there, and does not say what was published."""
    pool.app.conf.worker_deduplicate_successful_tasks = True
    runs = []

    def run(self: Any) -> None:
        runs.append(self)

    job = add(pool, run, acks_late=True)
    job.apply_async(link=note(pool.app), task_id="one")
    claimed = pool.take()
    pool.app.backend.store_result("one", None, "SUCCESS")
    found = []
    for _ in range(2):
        pool.run(claimed, redelivered=True, steps="of an earlier run")
        found.append(pool.sent())
    assert not runs
    assert found[0] == found[1]
    assert len(found[0]) == 1
