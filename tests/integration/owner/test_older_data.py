"""The server comes back with older data: a process has a former name there, and jobs under it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from celery_superfetch.console.health import findings
from celery_superfetch.console.overview import overview_of
from celery_superfetch.inspector import Inspector
from celery_superfetch.owner.owner import Owner
from support.driver import Driver
from support.servers.server import Server
from support.waiting import eventually
from support.workers.bench import Bench, payload


class OlderData:
    """A server with the data of an earlier moment at hand, and an owner there whose heartbeats a
    test sends."""

    def __init__(self, server: Server, make: Callable[..., Owner]) -> None:
        self.server, self.bench = server, Bench(server.client())
        self.member = make(server.url(), heartbeat_interval=60, owner_ttl=300)
        self.member.join(1, {"mail": 0})
        self.driver = Driver.of(self.member)

    def claim(self, *names: str) -> list[Any]:
        self.bench.push("mail", *map(payload, names))
        leases = [*self.member.claim(["mail"], len(names), 1).leases]
        for lease in leases:
            self.driver.reserve(lease.job)
        return leases

    def save(self) -> None:
        self.bench.client.save()
        shutil.copy(self.server.dir / "dump.rdb", self.server.dir / "older.rdb")

    def come_back(self) -> None:
        self.server.kill()
        shutil.copy(self.server.dir / "older.rdb", self.server.dir / "dump.rdb")
        self.server.start()
        # A worker has to learn that these are lost, and then tries again.
        self.driver.release_connection()
        self.member.client.connection_pool.disconnect()

    def renew_name(self) -> None:
        """Leave and join, as a worker without jobs does whose connections were cut."""
        self.member.leave(1)
        assert not self.member.name
        self.member.join(1, {"mail": 0})

    def catch_up(self) -> None:
        """One call finds the former names, and the next ones leave them."""
        self.member.catch_up()
        self.member.catch_up()

    def owners(self) -> set[str]:
        return set(self.bench.registry.owners())


@pytest.fixture
def on(fresh_server: Callable[..., Server], make: Callable[..., Owner]) -> OlderData:
    return OlderData(fresh_server(), make)


def test_a_former_name_is_left_and_its_jobs_go_back_without_a_strike(on, caplog):
    """Its process lives. So peers on this host never declared it dead, and its jobs never ran;
    peers elsewhere did, and the job that ran then got a strike."""
    former, [ran, waited, acked] = on.member.name, on.claim("ran", "waited", "acked")
    for lease in (ran, acked):
        assert on.driver.start(lease.job)
    on.driver.flush()
    on.save()
    on.driver.requeue([waited.job, ran.job])
    on.driver.finish(acked)
    on.driver.flush()
    on.renew_name()
    on.come_back()
    on.member.heartbeat()
    assert on.owners() == {former, on.member.name}, "the control"
    assert len(on.bench.held(former)) == 3
    caplog.set_level("INFO")
    on.catch_up()
    assert on.owners() == {on.member.name}
    assert on.bench.held(former) == []
    assert on.bench.queue() == [payload("ran"), payload("waited")], "acked again, or requeued"
    assert on.bench.counters(payload("ran")).strikes == 0
    assert f"an earlier id (owner={former})" in caplog.text
    assert "jobs requeued just now: 2" in caplog.text
    assert on.bench.reaper().reap().dead == {}
    assert not on.member.has_deferred_calls


def test_a_name_that_was_lost_before_is_left_too(on):
    former = on.member.name
    on.claim("waited")
    on.save()
    assert on.bench.mark(former)
    on.bench.reaper().reap()
    on.member.heartbeat()
    on.catch_up()
    assert on.member.name != former
    on.come_back()
    on.member.heartbeat()
    on.catch_up()
    assert on.owners() == {on.member.name}
    assert on.bench.queue() == [payload("waited")]


def test_a_process_that_joins_after_the_server_came_back_leaves_its_former_name(on):
    [waited] = on.claim("waited")
    on.save()
    on.driver.requeue([waited.job])
    on.member.leave(1)
    assert not on.member.name
    on.come_back()
    on.member.join(1, {"mail": 0})
    on.catch_up()
    assert on.owners() == {on.member.name}
    assert on.bench.queue() == [payload("waited")]


def test_a_former_name_stays_while_a_job_of_it_runs_here(on):
    """The job is acked under that name; if it was requeued, it would run twice for sure."""
    former, [runs, _] = on.member.name, on.claim("runs", "waited")
    assert on.driver.start(runs.job)
    on.driver.flush()
    on.save()
    on.bench.client.flushdb()
    on.member.heartbeat()
    on.catch_up()
    on.come_back()
    on.member.heartbeat()
    on.catch_up()
    on.catch_up()
    assert on.owners() == {former, on.member.name}
    assert on.bench.queue() == [payload("waited")], "the other one did not wait for it"
    on.bench.age(on.bench.record(former), 3 * 60_000)
    with Inspector.at(on.server.url(), "", "", 10) as inspector:
        codes = {finding.code for finding in findings(overview_of(inspector))}
    assert "former-owner" in codes
    assert "silent-owner" not in codes, "it would say to kill this process"
    on.driver.finish(runs)
    on.catch_up()
    on.catch_up()
    assert on.owners() == {on.member.name}
    assert on.bench.queue() == [payload("waited")]


def test_a_job_that_was_claimed_after_that_data_is_perhaps_on_its_queue(on, caplog):
    """The close of a channel examined it before a heartbeat had found out: the log said to publish
    it again, and it was on its queue."""
    on.bench.push("mail", payload("K"))
    on.renew_name()
    on.bench.client.delete(on.bench.keys.owners, on.bench.keys.owner_record(on.member.name))
    on.save()
    on.member.heartbeat()
    [lease] = on.member.claim(["mail"], 1, 1).leases
    on.come_back()
    on.driver.requeue([lease.job])
    on.driver.examine_missing()
    assert "may have come back with older data" in caplog.text
    assert "unless it is on its queue" in caplog.text
    assert on.bench.queue() == [payload("K")]


def test_a_process_that_ends_with_a_job_of_a_former_name_leaves_that_name_too(on):
    """A peer reported the death of a worker that had stopped in order."""
    [ran] = on.claim("ran")
    assert on.driver.start(ran.job)
    on.driver.flush()
    on.save()
    assert on.bench.mark(on.member.name)
    on.bench.reaper().reap()
    on.member.heartbeat()
    on.come_back()
    on.member.heartbeat()
    on.member.leave_for_good()
    assert on.owners() == set()
    assert on.bench.queue() == [payload("ran")]


def test_a_process_without_channels_leaves_a_former_name_before_its_own(on):
    """It is registered until the job that ran at its last close has ended."""
    [waited] = on.claim("waited")
    on.save()
    on.driver.requeue([waited.job])
    on.renew_name()
    [ran] = on.member.claim(["mail"], 1, 1).leases
    assert on.driver.start(ran.job)
    on.member.leave(1)
    on.come_back()
    on.member.heartbeat()
    on.driver.finish(ran)
    on.member.leave_later()
    eventually(lambda: on.owners() == set())
    assert on.bench.queue() == [payload("waited")]
