"""A signal handler, or the end of a greenlet, in the middle of an exchange with the server."""

from __future__ import annotations

import pytest
from greenlet import GreenletExit

from support.servers.faulty import Fault
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
