"""A log handler that blocks holds up no other thread: no line is written under the lock of the jobs
in flight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from celery_superfetch.model.job import Claimed, Job, digest
from celery_superfetch.model.owner_record import OwnerRecord
from support.waiting import always
from support.workers.bench import Bench, payload


class SlowHandler(logging.Handler):
    """A handler that blocks at its first line, as a full pipe does."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.blocks, self.may_go_on = Event(), Event()

    def handle(self, record: logging.LogRecord) -> bool:  # without the handler's lock
        self.lines.append(record.getMessage())
        self.blocks.set()
        return self.may_go_on.wait(20)


@pytest.fixture
def slow() -> Iterator[SlowHandler]:
    handler, logger = SlowHandler(), logging.getLogger("celery_superfetch")
    logger.addHandler(handler)
    yield handler
    handler.may_go_on.set()
    logger.removeHandler(handler)


@pytest.fixture
def owner(bench: Bench) -> OwnerRecord:
    return bench.owner(lists=["mail", "slow"])


def refused_requeue(bench: Bench, job: Job) -> None:
    bench.client.set("slow", "a text")
    bench.driver.requeue([job])


def refused_park(bench: Bench, job: Job) -> None:
    bench.client.set(bench.keys.parked_of("slow"), "a text")
    bench.driver.server_time_is(0)
    assert bench.driver.park(job, 1e15)


def unanswered_requeue(bench: Bench, job: Job) -> None:
    with bench.driver.lose_reply():
        bench.driver.requeue([job])


def foreign_history(bench: Bench, job: Job) -> None:
    bench.client.set(bench.keys.history(digest(job.payload)), "a text")
    bench.driver.put_on_probation(job)


def foreign_claim(bench: Bench, job: Job) -> None:
    bench.client.hset(bench.keys.private(job.owner), "by hand", "a text")
    bench.driver.reconcile(job.owner, {"mail": 0, "slow": 0})


CASES: dict[str, Callable[[Bench, Job], None]] = {
    "Requeue failed (jobs=1): slow: WRONGTYPE": refused_requeue,
    "Jobs could not be scheduled for later (jobs=1, queue=slow)": refused_park,
    "Requeue failed (jobs=1): ": unanswered_requeue,
    "it must hold a job's history": foreign_history,
    "Unknown fields in a private list": foreign_claim,
}


@pytest.mark.parametrize("is_control", [False, True], ids=["", "control"])
@pytest.mark.parametrize("text", CASES)
def test_a_log_handler_that_blocks_holds_up_no_other_thread(bench, owner, slow, text, is_control):
    """In the control the line is written where its cause is found."""
    [job] = [claimed.job for claimed in bench.take(owner, payload("slow"), queue="slow")]
    [other] = bench.take(owner, payload("other"))
    if is_control:
        bench.driver.log_at_once()

    def cause() -> None:
        CASES[text](bench, job)
        bench.driver.flush()

    def live() -> list[Claimed]:
        bench.driver.start(other.job)
        bench.driver.finish(other)
        bench.driver.flush()
        return bench.take(owner, payload("new"))

    with ThreadPoolExecutor(2) as threads:
        try:
            caused = threads.submit(cause)
            assert slow.blocks.wait(20)
            assert text in slow.lines[0]
            lived = threads.submit(live)
            if is_control:
                always(lambda: not lived.done(), during=0.5)
            else:
                [new] = lived.result(10)
                assert new.job.payload == payload("new")
                assert not caused.done()
        finally:
            slow.may_go_on.set()
        caused.result(20)
        lived.result(20)
    assert len([line for line in slow.lines if text in line]) == 1


def test_log_lines_are_written_once_and_in_the_order_of_their_causes(bench, owner, caplog):
    one, two = bench.take(owner, payload(1), payload(2), queue="slow")
    bench.client.set("slow", "a text")
    bench.client.set(bench.keys.parked_of("slow"), "a text")
    bench.driver.server_time_is(0)
    bench.driver.requeue([one.job])
    assert bench.driver.park(two.job, 1e15)
    assert not caplog.messages, "they are written after the lock is released"
    bench.driver.flush()
    bench.driver.flush()
    assert [text.split(" (")[0] for text in caplog.messages] == [
        "Requeue failed",
        "Jobs could not be scheduled for later",
        "Requeue failed",
    ]
