"""A signal handler, or the end of a greenlet, in the middle of an exchange with the server."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from greenlet import GreenletExit

from celery_superfetch.model.job import Claimed
from support.servers.faulty import Fault, Terminated
from support.workers.bench import payload

A = payload("a")


def test_a_job_that_a_signal_handler_requeues_during_its_start_does_not_start(
    bench, owner, faults, driver
):
    bench.push("mail", A)
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    driver.reserve(claimed.job)
    faults.handler = lambda: driver.requeue([claimed.job])
    faults.arm(Fault.SIGNAL, 1)
    assert driver.start(claimed.job) == 0.0
    assert bench.queue() == [A]


@pytest.mark.parametrize("point", [1, 2], ids=["before", "sent"])
def test_a_job_whose_start_is_killed_waits_again(bench, owner, faults, driver, point):
    """No pool has it: it would stay here, running for ever."""
    bench.push("mail", A)
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    driver.reserve(claimed.job)
    faults.arm(Fault.KILLED, point)
    with pytest.raises(GreenletExit):
        driver.start(claimed.job)
    assert driver.is_reserved(claimed.job)
    driver.reconcile(owner.owner, {"mail": 0})
    assert bench.recorded(owner) == []


def test_a_reconcile_that_is_killed_is_still_needed(bench, owner, faults, driver):
    bench.push("mail", A)
    bench.claim(owner)
    driver.needs_reconcile = True
    faults.arm(Fault.KILLED, 1)
    with pytest.raises(GreenletExit):
        driver.reconcile(owner.owner, {"mail": 0})
    assert driver.needs_reconcile
    assert driver.reconcile(owner.owner, {"mail": 0}) == 1
    assert bench.queue() == [A]


@pytest.mark.parametrize("point", [1, 2, 3], ids=["before", "sent", "read"])
def test_a_requeue_that_a_signal_handler_repeats_is_no_loss(bench, owner, faults, driver, point):
    bench.push("mail", A)
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    faults.handler = driver.flush
    faults.arm(Fault.SIGNAL, point)
    driver.requeue([claimed.job])
    driver.examine_missing()
    assert bench.queue() == [A]
    assert bench.stat("lost") == 0


def test_the_control_a_job_that_is_gone_at_its_requeue_is_lost(bench, owner, faults, driver):
    bench.push("mail", A)
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    bench.client.delete(bench.keys.private(owner.owner))
    driver.requeue([claimed.job])
    driver.examine_missing()
    assert bench.stat("lost") == 1


def test_a_requeue_goes_by_another_connection_where_its_own_was_lost(
    bench, owner, faults, driver, caplog
):
    """A channel closes because its connection was lost, and that of the requeues with it: its jobs
    would wait for the next channel, or for the reaper."""
    bench.push("mail", A)
    [claimed] = driver.claim(owner.owner, ["mail"], 1).jobs
    driver.reserve(claimed.job)
    faults.arm(Fault.LOST, 1)
    driver.close([claimed.job])
    assert faults.hits[Fault.LOST]
    assert bench.queue() == [A]
    assert not caplog.records


def test_a_signal_handler_that_claims_during_a_send_gets_an_error(bench, owner, faults, driver):
    """The send that it interrupts would have to end before."""
    bench.push("mail", A)
    faults.handler = lambda: driver.claim(owner.owner, ["mail"], 1)
    faults.arm(Fault.SIGNAL, 1)
    with pytest.raises(RuntimeError, match="must not claim"):
        driver.claim(owner.owner, ["mail"], 1)
    assert bench.queue() == [A]


class Interrupted(dict[str, int]):
    """The x-expires of queues, the first look at which a signal handler interrupts and raises."""

    def get(self, name: str, default: int = 0) -> int:  # type: ignore[override]
        if "raised" not in vars(self):
            self.raised = True
            raise Terminated
        return default


def test_a_requeue_whose_command_was_not_finished_is_made_with_the_next_send(bench, owner, driver):
    bench.push("mail", A, payload("b"))
    one, two = (claimed.job for claimed in driver.claim(owner.owner, ["mail"], 2).jobs)
    driver.start(two)
    driver.finish(Claimed(two))
    driver.expires_ms_by_list = Interrupted()
    with pytest.raises(Terminated):
        driver.requeue([one])
    assert driver.has_unsent
    driver.flush()
    assert (bench.queue(), bench.private(owner)) == ([A], [])


def test_a_connection_with_replies_to_be_read_is_not_given_back(bench, owner, faults, driver):
    bench.push("mail", A, payload("b"))
    one, two = driver.claim(owner.owner, ["mail"], 2).jobs
    driver.finish(one)
    driver.post()
    driver.release_connection()
    driver.finish(two)
    driver.flush()
    assert (len(driver), bench.private(owner)) == (0, [])
    assert not all(connection.is_idle for connection in faults.connections)
    driver.release_connection()
    assert all(connection.is_idle for connection in faults.connections), "the control"


def test_a_connection_that_another_thread_may_use_is_not_waited_for(bench, owner, driver):
    """The heartbeat thread gives it back, which must not wait for a send."""
    driver.flush()
    ended = Event()
    with driver.lock:
        thread = Thread(target=lambda: (driver.release_connection(), ended.set()), daemon=True)
        thread.start()
        assert ended.wait(10)
    thread.join()
