"""What became of a job whose requeue found no claim: the log says so, once, and lost jobs are
counted."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from time import time

import pytest
import redis

from celery_superfetch.model.job import digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.store.redis.clients import run_id
from support.driver import LOST_JOBS_LOGGED_MAX
from support.servers.faulty import Fault
from support.workers.bench import Bench, payload


@pytest.fixture
def owner(bench: Bench) -> OwnerRecord:
    return bench.owner(lists=["mail"])


def requeue_missing(
    bench: Bench, owner: OwnerRecord, count: int = 1, *, has_run: bool = False
) -> None:
    """Requeue jobs whose private list is gone."""
    claims = bench.take(owner, *(payload(number) for number in range(count)))
    if has_run:
        bench.hand_over(claims[0])
    bench.client.delete(bench.keys.private(owner.owner))
    bench.driver.requeue([claimed.job for claimed in claims])


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize("has_run", [False, True])
def test_a_job_that_is_nowhere_is_lost(bench, owner, caplog, has_run):
    requeue_missing(bench, owner, has_run=has_run)
    bench.driver.examine_missing()
    bench.driver.examine_missing()
    [record] = [record for record in caplog.records if " is lost (" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert f"queue=mail, owner={owner.owner}" in record.getMessage()
    assert ("had not started it" in record.getMessage()) is not has_run
    assert bench.stat("lost") == 1
    assert not bench.driver


def test_two_threads_examine_each_job_once(bench, owner, caplog):
    """A worker's maintenance, and the close of a channel. The slower one raised IndexError."""
    requeue_missing(bench, owner, count=100)
    together = Barrier(4)

    def examine(_: int) -> None:
        together.wait()
        bench.driver.examine_missing()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(examine, range(4)))
    assert bench.stat("lost") == 100


@pytest.mark.parametrize("at", range(1, 16))
def test_where_the_server_is_away_lost_jobs_are_examined_again(
    bench, owner, client, faults, driver, caplog, at
):
    """They were logged, taken from the list, and counted by no one."""
    bench.push("mail", payload("a"))
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    client.delete(bench.keys.private(owner.owner))
    driver.requeue([claimed.job])
    faults.arm(Fault.LOST, at)
    with suppress(redis.RedisError):
        driver.examine_missing()
    faults.disarm()
    driver.examine_missing()
    assert caplog.text.count(" is lost (") == 1
    # It is counted twice where the reply to the first count was lost.
    assert bench.stat("lost") in (1, 2)
    assert not driver.has_missing


def test_a_server_that_refuses_to_count_lost_jobs_leaves_them_in_the_log(bench, owner, caplog):
    requeue_missing(bench, owner)
    bench.client.config_set("min-replicas-to-write", 1)
    try:
        bench.driver.examine_missing()
    finally:
        bench.client.config_set("min-replicas-to-write", 0)
    assert caplog.text.count(" is lost (") == 1
    assert not bench.driver.has_missing


def test_many_in_a_row_share_a_line(bench, owner, caplog):
    requeue_missing(bench, owner, 70)
    requeue_missing(bench, owner, LOST_JOBS_LOGGED_MAX + 30)
    bench.driver.examine_missing()
    assert caplog.text.count(" is lost (") == LOST_JOBS_LOGGED_MAX
    assert "100 more jobs are lost in the same way (shop.note: 100)" in caplog.text
    assert bench.stat("lost") == LOST_JOBS_LOGGED_MAX + 100
    requeue_missing(bench, owner)
    bench.driver.examine_missing()
    bench.driver.examine_missing()
    requeue_missing(bench, owner)
    bench.driver.examine_missing()
    assert caplog.text.count(" is lost (") == LOST_JOBS_LOGGED_MAX + 1, "the row had ended"


def test_a_job_that_a_peer_recovered_is_not_lost(bench, owner, caplog):
    requeue_missing(bench, owner)
    bench.mark(owner)
    bench.driver.examine_missing()
    assert "another worker recovered the job" in caplog.text
    assert " is lost (" not in caplog.text
    assert bench.stat("lost") == 0


def test_a_job_that_is_in_the_dead_set_is_not_lost(bench, owner, caplog):
    requeue_missing(bench, owner)
    bench.client.hset(bench.keys.dead_jobs, digest(payload(0)), "{}")
    bench.driver.examine_missing()
    assert "it was moved to the dead set" in caplog.text
    assert bench.stat("lost") == 0


def test_a_requeue_that_had_no_answer_and_comes_again_is_no_news(bench, owner, caplog):
    [claimed] = bench.take(owner, payload(0))
    with bench.driver.lose_reply():
        bench.driver.requeue([claimed.job])
    assert bench.queue() == [payload(0)]
    bench.driver.flush()
    bench.driver.examine_missing()
    assert " is lost (" not in caplog.text
    assert not bench.driver


def test_a_requeue_that_was_never_sent_and_comes_again_is_a_loss(fresh_server, caplog):
    """It was taken for one that the server had carried out, and no line said that the job was
    lost."""
    server = fresh_server()
    bench = Bench(server.client())
    owner = bench.owner(lists=["mail"])
    [claimed] = bench.take(owner, payload(0))
    bench.driver.release_connection()
    server.stop()
    bench.driver.requeue([claimed.job])
    server.start()
    bench.registry.register(owner)
    bench.driver.flush()
    bench.driver.examine_missing()
    assert caplog.text.count(" is lost (") == 1


def test_after_a_restart_the_job_may_be_on_its_queue(bench, owner, caplog):
    bench.driver.server_restarted(time() + 60)
    requeue_missing(bench, owner)
    bench.driver.examine_missing()
    assert "unless it is on its queue or has run" in caplog.text
    assert bench.stat("lost") == 1


def test_after_a_restart_a_requeue_that_comes_again_may_have_been_undone(bench, owner, caplog):
    """The data may be older than the requeue that had no reply."""
    [claimed] = bench.take(owner, payload(0))
    with bench.driver.lose_reply():
        bench.driver.requeue([claimed.job])
    bench.driver.server_restarted(time() + 60)
    bench.driver.flush()
    bench.driver.examine_missing()
    assert "unless it is on its queue or has run" in caplog.text
    assert bench.stat("lost") == 1


@pytest.mark.parametrize("is_other", [False, True])
def test_a_restart_that_no_heartbeat_has_found_yet_counts(bench, owner, client, caplog, is_other):
    """With older data the server may not know the owner either."""
    bench.driver.heartbeat_came_from("another run" if is_other else run_id(client))
    requeue_missing(bench, owner)
    client.delete(bench.keys.owner_record(owner.owner))
    bench.driver.examine_missing()
    assert caplog.text.count(" is lost (") == 1
    assert ("unless it is on its queue" in caplog.text) is is_other


def test_where_info_is_forbidden_an_unknown_owners_job_may_be_on_its_queue(fresh_server, caplog):
    """No restart shows there, and nobody is to publish a job again that is back."""
    server = fresh_server()
    direct = server.client()
    direct.acl_setuser("shop", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
    bench = Bench(redis.Redis(port=server.port, username="shop", password="any"))
    owner = bench.owner(lists=["mail"])
    requeue_missing(bench, owner)
    bench.driver.examine_missing()
    assert "had not started it. Publish it again." in caplog.text, "the control: it is known"
    bench.client.delete(bench.keys.owner_record(owner.owner))
    [claimed] = bench.take(owner, payload(1))
    direct.delete(bench.keys.private(owner.owner))
    bench.driver.requeue([claimed.job])
    bench.driver.examine_missing()
    assert "unless it is on its queue" in caplog.text


def test_while_the_server_cannot_be_asked_the_jobs_wait(bench, owner, caplog):
    requeue_missing(bench, owner)
    bench.client.set(bench.keys.dead_jobs, "no hash")
    with pytest.raises(redis.ResponseError):
        bench.driver.examine_missing()
    bench.client.delete(bench.keys.dead_jobs)
    assert bench.driver.has_missing
    bench.driver.examine_missing()
    assert bench.stat("lost") == 1
