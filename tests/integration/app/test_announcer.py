"""C8. What another app has to announce is read once, and not at each look at the dead set."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from celery_superfetch.app import announcer as announcements
from celery_superfetch.app.announcer import LONGEST_PAUSE, Announcements
from celery_superfetch.model.job import parse
from support.workers.bench import Bench, payload

STRANGERS = 45


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app on the database of the shop's, with one task of the same name as the shop has."""
    monkeypatch.setattr(announcements, "_left_alone", {})
    app = Celery("blog", broker="redis://localhost:6399", set_as_current=False)
    app.conf.broker_transport_options = {"app_name": "blog"}

    @app.task(name="shop.note", shared=False)
    def note() -> None: ...

    app.finalize()
    return app


def sent(client: redis.Redis) -> int:
    """Bytes that the server has sent so far."""
    return int(client.info("stats")["total_net_output_bytes"])


def test_another_apps_unannounced_jobs_are_read_once(own: redis.Redis, app: Celery) -> None:
    """By a worker, and by passes that do not stay: beat's task looks each ten seconds."""
    bench = Bench(own)
    bench.killed(*(payload(n, padding="x" * 10_000) for n in range(STRANGERS)))
    before = sent(own)
    Announcements(app, own).look()
    assert sent(own) - before > STRANGERS * 10_000, "the control: whose they are, a record says"
    for looker in (Announcements(app, own), Announcements(app, own, owner=str)):
        before = sent(own)
        looker.look()
        looker.after_pass()
        assert sent(own) - before < 20_000
    assert len([*bench.dead_set.unannounced()]) == STRANGERS, "they are the other app's"


def test_ones_own_are_found_among_them_and_strangers_are_asked_for_again_one_day(
    own: redis.Redis, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(own)
    bench.killed(*(payload(n) for n in range(STRANGERS)))
    looker = Announcements(app, own)
    looker.look()
    assert not looker.waiting
    [nobodys] = bench.killed(b'{"no": "task"}')
    own.sadd(bench.keys.unannounced, nobodys.id)
    looker.look()
    assert [job.id for job in looker.waiting] == [nobodys.id]
    looker.look()
    assert len(looker.waiting) == 1
    strangers = announcements._left_alone
    assert len(strangers) == STRANGERS
    for key in strangers:
        strangers[key] = strangers[key][0] - LONGEST_PAUSE - 1, LONGEST_PAUSE
    looker.look()
    assert len(strangers) == STRANGERS
    assert all(parse(job.payload).message is None for job in looker.waiting)
