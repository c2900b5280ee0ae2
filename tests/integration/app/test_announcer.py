"""C8. What another app has to announce is not read; what failed is left alone for a while."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from celery_superfetch.app.announcer import LONGEST_PAUSE, PAUSE, Announcements
from celery_superfetch.signals import job_killed
from celery_superfetch.store.announcements import Announcement, TakenOver
from support.waiting import eventually
from support.workers.bench import Bench, payload

STRANGERS = 45


@pytest.fixture
def app() -> Celery:
    """An app on the database of the shop's, with one task of the same name as the shop has."""
    app = Celery("blog", broker="redis://localhost:6399", set_as_current=False)
    app.conf.broker_transport_options = {"app_name": "blog"}

    @app.task(name="shop.note", shared=False)
    def note() -> None: ...

    app.finalize()
    return app


def sent(client: redis.Redis) -> int:
    """Bytes that the server has sent so far."""
    return int(client.info("stats")["total_net_output_bytes"])


@pytest.mark.parametrize(("app_name", "read"), [("shop", False), ("blog", True)])
def test_another_apps_unannounced_jobs_are_not_read(
    own: redis.Redis, app: Celery, app_name: str, read: bool
) -> None:
    """The control: an app's own are."""
    bench = Bench(own, app_name=app_name)
    bench.killed(*(payload(n, padding="x" * 10_000) for n in range(STRANGERS)))
    before = sent(own)
    Announcements(app, own).look()
    assert (sent(own) - before > STRANGERS * 10_000) is read
    assert len([*bench.dead_set.unannounced()]) == STRANGERS, "they wait for their app"


def test_ones_own_are_found_among_them(own: redis.Redis, app: Celery) -> None:
    Bench(own).killed(*(payload(n) for n in range(STRANGERS)))
    [ours] = Bench(own, app_name="blog").killed(payload("ours"))
    looker = Announcements(app, own)
    for _ in range(2):
        looker.look()
        assert [job.id for job in looker.waiting] == [ours.id]


def test_what_failed_is_left_alone_by_all_and_twice_as_long_each_time(
    own: redis.Redis, app: Celery
) -> None:
    """Until then its errbacks are not run again and again; a pass that ends tries at once."""
    app.conf.result_backend = "redis://localhost:1"
    tried = []
    job_killed.connect(lambda job, **_: tried.append(job.id), sender=app, weak=False)
    bench = Bench(own, app_name="blog")
    [job] = bench.killed(payload("ours"))
    name = bench.keys.announcement(job.id)

    def failed(pauses: list[float]) -> bool:
        return [float(own.hget(name, "pause") or 0)] == pauses[-1:]

    pause, pauses = PAUSE, []
    while pause <= 2 * LONGEST_PAUSE:
        pauses.append(min(pause, LONGEST_PAUSE))
        looker = Announcements(app, own, owner=str)
        looker.look()
        eventually(lambda: failed(pauses))
        other = Announcement(bench.database, job.id)
        with pytest.raises(TakenOver):
            other.begin()
        own.hset(name, "ends", 1)  # as if it were over
        pause *= 2
    assert tried == [job.id]
    other.begin()
    assert other.tries == 1, "nobody died of it"
