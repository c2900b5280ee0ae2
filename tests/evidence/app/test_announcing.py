"""An announcement that its process does not survive, and one whose helpers are of no help."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import format_exception
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery, chord
from celery.signals import task_failure

from celery_superfetch import PoisonPill
from celery_superfetch.app.announcer import FAILURES
from celery_superfetch.app.announcing import TRIES
from celery_superfetch.app.passes import reaper_of
from celery_superfetch.model.strikes import Decision
from celery_superfetch.signals import job_killed, job_recovering
from celery_superfetch.store.announcements import Announcement, TakenOver
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.waiting import eventually
from support.workers.bench import Bench
from support.workers.cli import superfetch_command
from support.workers.worker import process_env

KILLED = -9


@pytest.fixture
def reap(env: Callable[..., dict[str, str]], tmp_path: Path) -> Callable[..., None]:
    """`reap("hook", code=KILLED)`: a pass of `told` that kills what a dead owner held."""

    def run(half_way: str, code: int = 0, **environ: str) -> None:
        environ = {**env(), "KILL": "1", "HALF_WAY": half_way, **environ}
        done = subprocess.run(
            superfetch_command("reap", app="told"),
            env=process_env(environ),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"

    return run


def orphaned(bench: Bench, queue: str = "celery") -> None:
    """What waits on a queue was claimed by somebody who is dead."""
    jobs = bench.queue(queue)
    bench.client.delete(queue)
    bench.dead_owner(jobs, queue, lists=[queue])


def choir(app: Celery, bench: Bench) -> SimpleNamespace:
    """A chord of two pills, both held by a dead owner."""
    pills = [app.signature("told.pill", (name,)) for name in ("one", "two")]
    body = app.signature("told.note", kwargs={"who": "never"})
    body.link_error(app.signature("told.new"))
    result = chord(pills, body, app=app)()
    orphaned(bench)
    return SimpleNamespace(body=result, pills=result.parent.results)


def announced(bench: Bench) -> bool:
    return not bench.client.exists(bench.keys.unannounced)


def said(ledger: Ledger, what: str) -> list[str]:
    return [line["job"] for line in ledger.lines(what)]


@pytest.mark.parametrize("step", ["result", "count", "counted", "hook"])
def test_a_pass_goes_on_with_an_announcement_whose_process_died(
    app: Celery, bench: Bench, reap: Any, ledger: Ledger, step: str
) -> None:
    waiting = choir(app, bench)
    reap(step, code=KILLED)
    assert not announced(bench)

    def completed() -> bool:
        reap(step)
        return announced(bench)

    eventually(completed, message="as soon as the dead one's time is over")
    for pill in waiting.pills:
        assert isinstance(pill.result, PoisonPill)
        assert said(ledger, "stored FAILURE").count(pill.id) == 1, "one result"
        assert said(ledger, "counted").count(pill.id) <= 1, "and counted once"
    assert waiting.body.state == "FAILURE"
    with pytest.raises(Exception, match="was killed"):
        waiting.body.get(timeout=5)
    assert 1 <= len(said(ledger, "new errback: ChordError")) <= 2
    for what in ("poisoned", "task_failure"):
        assert sorted(said(ledger, what)) == ["one", "two"], what
    assert sorted(said(ledger, "job_killed")) == sorted(pill.id for pill in waiting.pills)
    assert not [key for key in bench.key_names() if "announcement" in key]
    assert "never" not in ledger.starts()


def test_the_control_counts_a_job_twice(
    app: Celery, bench: Bench, reap: Any, ledger: Ledger
) -> None:
    choir(app, bench)
    reap("counted", code=KILLED, WITHOUT="chord_notes")

    def completed() -> bool:
        reap("counted", WITHOUT="chord_notes")
        return announced(bench)

    eventually(completed)
    counted = said(ledger, "counted")
    assert max(counted.count(id) for id in counted) == 2


def test_what_kills_each_announcer_is_left_out_in_the_end(
    app: Celery, bench: Bench, reap: Any, ledger: Ledger
) -> None:
    pill = app.signature("told.pill", ("one",)).apply_async()
    orphaned(bench)
    for _ in range(TRIES):  # a command takes longer to start than the dead one's time
        reap("always", code=KILLED)
    assert not announced(bench)
    reap("always")
    assert announced(bench)
    with pytest.raises(PoisonPill):
        pill.get(timeout=5)
    assert said(ledger, "task_failure") == []


# -- in this process --------------------------------------------------------------------------


@pytest.fixture
def shop(make_app: Callable[..., Celery]) -> Callable[..., Celery]:
    """`shop(conf={...})`: an app in this process that kills whatever a dead owner held."""

    def make(**settings: Any) -> Celery:
        app = make_app(**settings)
        job_recovering.connect(lambda **_: Decision.KILL, sender=app, weak=False)
        return app

    return make


def test_a_broker_that_takes_no_events_holds_nobody_up(
    shop: Callable[..., Celery], bench: Bench, url: str
) -> None:
    """It accepts connections and says nothing; what is read from is another."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        app = shop(conf={"broker_read_url": url, "broker_write_url": f"redis://127.0.0.1:{port}/0"})
        results = [f"id-{n}" for n in range(20)]
        producer = shop(superfetch=False)
        for id in results:
            producer.tasks["shop.note"].apply_async(("a",), task_id=id)
        orphaned(bench)
        report = reaper_of(app, bench.client).reap()
    assert (report.killed, report.errors) == (20, 0)
    assert announced(bench)
    assert report.seconds < 10, "one wait of two seconds, not one for each"
    assert all(isinstance(app.AsyncResult(id).result, PoisonPill) for id in results)


def test_an_announcement_that_failed_goes_on_with_the_next_pass(
    shop: Callable[..., Celery], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result backend is away; that people hear of the death does not wait for it."""
    app, killed = shop(), []
    job_killed.connect(lambda job, **_: killed.append(job.task_id), sender=app, weak=False)
    note = app.tasks["shop.note"]
    result = note.apply_async(("a",))
    orphaned(bench)

    def away(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("the result backend is away")

    with monkeypatch.context() as patch:  # whoever announces has a backend of his own
        patch.setattr(type(note.backend), "store_result", away)
        for _ in range(TRIES + 2):
            reaper_of(app, bench.client).reap()
            assert not announced(bench)
    reaper_of(app, bench.client).reap()
    assert announced(bench)
    assert isinstance(result.result, PoisonPill)
    assert killed == [result.id], "once"


def test_a_receiver_of_task_failure_finds_the_error_under_way(
    shop: Callable[..., Celery], bench: Bench
) -> None:
    """F4. As where Celery sends it: elastic-apm and others ask `sys.exc_info()`."""
    app, seen = shop(), []

    def receiver(exception: Exception, traceback: Any, **_: Any) -> None:
        seen.append((sys.exc_info(), exception, traceback))

    task_failure.connect(receiver)
    try:
        app.tasks["shop.note"].apply_async(("a",))
        orphaned(bench)
        reaper_of(app, bench.client).reap()
    finally:
        task_failure.disconnect(receiver)
    [((kind, value, traceback), exception, told)] = seen
    assert kind is PoisonPill
    assert value is exception
    assert traceback is not None
    assert "PoisonPill" in "".join(format_exception(value))
    assert told


def test_a_pass_waits_for_no_more_than_a_few_that_fail(
    shop: Callable[..., Celery], bench: Bench, client: redis.Redis
) -> None:
    """C1: beat's task and the command wait for what they announce, but not for each of many."""
    with FaultProxy(client.connection_pool.connection_kwargs["port"]) as proxy:
        app, tried = shop(result_url=proxy.url()), []
        job_killed.connect(lambda job, **_: tried.append(job.task_id), sender=app, weak=False)
        for _ in range(50):
            shop(superfetch=False).tasks["shop.note"].apply_async(("a",))
        orphaned(bench)
        proxy.stall()
        report = reaper_of(app, bench.client).reap()
        proxy.heal()
    assert (report.killed, report.errors) == (50, 0)
    assert not announced(bench)
    assert FAILURES <= len(tried) <= FAILURES + 1


def begun(announcement: Announcement) -> bool:
    try:
        announcement.begin()
    except TakenOver:
        return False
    return True


def test_one_process_announces_at_a_time(bench: Bench) -> None:
    one, two = (Announcement(bench.database, "id") for _ in "12")
    assert not begun(one), "there is nothing to announce"
    bench.client.sadd(bench.keys.unannounced, "id")
    assert begun(one)
    assert not begun(two)
    one.note(chord="begun")
    one.give_back()
    assert begun(two)
    assert (two.chord, two.tries) == ("begun", 1), "what was given back did not end its process"
    with pytest.raises(TakenOver):
        one.note(chord="done")
    bench.client.zadd(bench.keys.dead, {"id": 1234})
    assert begun(one), "put back by hand and killed again: another death"
    assert (one.chord, one.tries, one.died_at) == ("", 1, 1234)
    bench.client.delete(bench.keys.dead)
    one.done()
    assert not begun(two)
    assert bench.key_names() == set()


def test_what_an_owner_announces_is_its_own_while_it_lives(bench: Bench) -> None:
    """C1: a try that hangs is no crash: it counts, and is another's, when its owner has died."""
    bench.client.sadd(bench.keys.unannounced, "id")
    owner = bench.owner()
    one = Announcement(bench.database, "id", owner.owner)
    two = Announcement(bench.database, "id")
    assert begun(one)
    bench.client.hset(bench.keys.announcement("id"), "ends", 1)  # as if it had been long ago
    assert not begun(two)
    one.give_back()
    assert begun(two)
    assert two.tries == 1, "what was given back did not count"
    two.give_back()
    assert begun(one)
    one.note(chord="begun")
    assert one.tries == 1
    assert not begun(two)
    bench.client.zrem(bench.keys.owners, owner.owner)
    assert begun(two)
    assert (two.chord, two.tries) == ("begun", 2)
