"""Which process of a pool may get a job, by a real pool of processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD
from threading import Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.pool import LaxBoundedSemaphore
from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import Hub

from celery_superfetch.model.start_permit import clock
from celery_superfetch.worker.outcomes import TooLate, run_and_pack
from celery_superfetch.worker.pool_process import PoolProcess
from celery_superfetch.worker.pool_slots import PoolSlots
from celery_superfetch.worker.prefork import apply_repairs
from celery_superfetch.worker.run_job import run_job
from support.waiting import eventually

CLAIM = ("", "", "", 0)  # none that could hand on a step


class Request:
    """What the pool tells of one job."""

    delivery = "one of ours"

    def __init__(self) -> None:
        self.accepted_by = self.ended_by = 0
        self.is_returned = False
        self.at_end: Any = None
        self.on_end: Callable[[], Any] = lambda: None

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        self.accepted_by = pid

    def on_outcome(self, outcome: Any) -> None:
        if isinstance(outcome, TooLate):
            self.is_returned = True
        else:
            self.ended_by, self.at_end = outcome, self.on_end()


#: A process that is forked waits while these files exist, before it has handlers of its own.
UNTIL_GONE: list[Path] = []


def wait_as_forked() -> None:
    for path in UNTIL_GONE:
        wait_for(path)


os.register_at_fork(after_in_child=wait_as_forked)


class Processes(AsynPool):
    Worker = PoolProcess


class Bench:
    """A pool, its slots, and an event loop that turns as long as a test waits."""

    def __init__(self, size: int = 2, **options: Any) -> None:
        self.hub = Hub()
        self.pool: Any = Processes(
            size,
            threads=False,
            semaphore=LaxBoundedSemaphore(size),
            enable_timeouts=True,  # as Celery makes it
            **options,
        )
        self.freed: list[int] = []
        outer = SimpleNamespace(_pool=self.pool, flush=self.pool.flush)
        self.requeued: list[Request] = []
        apply_repairs(outer, self.requeued.append, self.hub.call_later)
        self.slots = PoolSlots(outer, lambda: self.freed.append(self.slots.idle_count), 4.0)
        self.shrink, self.flush = outer.shrink, outer.flush
        self.pool.register_with_event_loop(self.hub)
        self._loop = self.hub.create_loop()

    def until(self, condition: Callable[[], Any]) -> Any:
        def turn() -> Any:
            self.hub.call_soon(lambda: None)  # do not sleep
            next(self._loop)
            return condition()

        return eventually(turn)

    def up(self) -> Bench:
        self.until(lambda: self.slots.idle_count == self.pool._processes)
        return self

    def send(self, *call: Any, late: bool = False) -> Request:
        request = Request()
        due = clock() + (-1 if late else 60)
        self.pool.apply_async(
            run_and_pack,
            (run_job, due, CLAIM, *(call or (os.getpid,))),
            accept_callback=request.on_accepted,
            callback=request.on_outcome,
        )
        return request

    def job_of(self, request: Request) -> Any:
        [job] = [j for j in self.pool._cache.values() if j._callback == request.on_outcome]
        return job

    def pids(self) -> set[int]:
        return {process.pid for process in self.pool._pool}

    def stop(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

    def resume(self, pids: Iterable[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        for process in self.pool._pool:
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
        self.pool._state = 1
        self.pool._cache.clear()  # at its end this process would wait for the results
        self.hub.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(*args: Any, **options: Any) -> Bench:
        benches.append(Bench(*args, **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def wait_for(path: Path) -> None:
    while path.exists():
        time.sleep(0.01)


def test_a_process_that_loads_is_no_slot(start, tmp_path):
    loading = tmp_path / "loading"
    loading.touch()
    bench = start(initializer=wait_for, initargs=(loading,))
    assert bench.slots.idle_count == 0
    loading.unlink()
    bench.up()
    assert bench.freed == [1, 2], "the gate hears of each"


def test_a_job_that_is_not_begun_is_no_task_of_its_process(start):
    bench = start(1, maxtasksperchild=1).up()
    [pid] = bench.pids()
    late = bench.send(late=True)
    bench.until(lambda: late.is_returned)
    assert not late.accepted_by
    assert not bench.pool._cache
    bench.up()
    in_time = bench.send()
    bench.until(lambda: in_time.ended_by)
    assert in_time.ended_by == pid


@pytest.mark.parametrize("limit", [{"maxtasksperchild": 1}, {"max_memory_per_child": 1}], ids=str)
def test_the_last_result_of_a_process_finds_it_closed(start, limit):
    """Else the next job is written into its pipe: it is given away at that moment."""
    bench = start(1, **limit).up()
    request = bench.send()
    request.on_end = lambda: bench.slots.idle_count
    bench.until(lambda: request.ended_by)
    assert request.at_end == 0
    bench.until(lambda: bench.pids() - {request.ended_by})
    assert not request.is_returned


def test_a_pool_shrinks_by_a_process_that_was_given_no_job(start):
    bench = start(2).up()
    bench.stop(*bench.pids())
    request = bench.send()
    bench.until(lambda: bench.job_of(request)._write_to)
    given = bench.job_of(request)._write_to.pid
    bench.shrink(1)
    with pytest.raises(ValueError, match="each of its processes has a job"):
        bench.shrink(1)
    for pid in bench.pids():
        os.kill(pid, signal.SIGCONT)
    bench.until(lambda: request.ended_by)
    assert request.ended_by == given
    bench.until(lambda: bench.pids() == {given})


def test_a_pool_that_has_a_process_to_come_shrinks_by_that(start):
    bench = start(2).up()
    pids = bench.pids()
    bench.pool.grow(1)
    bench.shrink(1)
    bench.pool.maintain_pool()
    assert bench.pids() == pids
    assert bench.slots.idle_count == 2


def test_a_process_that_ends_is_not_ended_twice(start):
    """Celery counted it twice, and the pool kept a process too many."""
    bench = start(3).up()
    bench.shrink(1)
    bench.shrink(1)
    bench.until(lambda: len(bench.pids()) == 1)
    assert bench.slots.idle_count == 1


def test_a_process_that_is_ended_in_its_first_milliseconds_ends(start, tmp_path):
    """It still had the worker's handler of SIGTERM, and lived on as no slot."""
    bench = start(1).up()
    first = bench.pids()
    forked = tmp_path / "forked"
    forked.touch()
    UNTIL_GONE.append(forked)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # as a worker has one
    try:
        bench.pool.grow(1)
        bench.pool.maintain_pool()
        bench.shrink(1)
        time.sleep(0.1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(bench.pids()) == 2
    forked.unlink()
    bench.until(lambda: bench.pids() == first)
    assert bench.slots.idle_count == 1


def test_a_job_that_a_leaving_process_will_not_read_comes_back_and_is_in_no_pipe(start):
    bench = start(1).up()
    [pid] = bench.pids()
    bench.stop(pid)
    large = bench.send(len, b"x" * 1_000_000)  # more than a pipe has room for
    bench.until(lambda: bench.job_of(large)._write_to)
    bench.slots._on_leaving(pid)
    assert large.is_returned
    assert bench.slots.idle_count == 0
    os.kill(pid, signal.SIGKILL)
    bench.until(lambda: bench.pids() and pid not in bench.pids())
    bench.up()
    again = bench.send()
    bench.until(lambda: again.ended_by)
    assert not bench.pool._cache


def test_a_job_whose_process_died_before_it_began_comes_back(start):
    bench = start(1).up()
    [pid] = bench.pids()
    bench.stop(pid)
    request = bench.send()
    bench.until(lambda: bench.job_of(request)._write_to)
    os.kill(pid, signal.SIGKILL)
    bench.until(lambda: request.is_returned)
    bench.up()


def test_a_process_that_runs_a_job_is_no_slot_after_a_lost_connection(start, tmp_path):
    """Celery 5.5 forgets that: the next job waited in its pipe."""
    held = tmp_path / "held"
    held.touch()
    bench = start(2).up()
    request = bench.send(wait_for, held)
    bench.until(lambda: request.accepted_by)
    bench.flush()
    assert bench.slots.idle_count == 1
    held.unlink()


def test_a_job_whose_process_dies_in_a_flush_is_no_job_that_has_not_started(start, tmp_path):
    """Its messages were not read: it ran again without a strike, even if it had finished."""
    done = tmp_path / "done"
    bench = start(2).up()
    first, last = bench.pool._pool
    bench.stop(first.pid, last.pid)
    requests = [bench.send(done.touch), bench.send(done.touch)]
    bench.until(lambda: all(bench.job_of(request)._write_to for request in requests))
    [unread] = [request for request in requests if bench.job_of(request)._write_to is first]
    [started] = {*requests} - {unread}
    os.kill(last.pid, signal.SIGCONT)
    eventually(done.exists)
    read = bench.pool.process_flush_queues

    def read_and_kill(process: Any) -> None:
        """The pool looks at the last process first: that dies when the pool has found it alive."""
        read(process)
        if process is first and last.exitcode is None:
            os.kill(last.pid, signal.SIGKILL)
            eventually(lambda: last.exitcode is not None)

    bench.pool.process_flush_queues = read_and_kill
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: first.exitcode is not None)
    bench.flush()
    assert bench.requeued == [unread]
    assert started.accepted_by == last.pid


def read_in_part(bench: Bench, process: Any, request: Request) -> int:
    """Wait until the pool has read a part of a result, which is larger than a pipe; return the
    number of bytes that are left."""

    def partial_reads() -> list[Any]:
        return [reader for reader, _ in bench.hub.readers.values() if hasattr(reader, "gi_frame")]

    bench.until(lambda: bench.job_of(request)._write_to)
    eventually(lambda: in_pipe(process) > 60_000)
    bench.stop(process.pid)  # it would fill the pipe while the pool reads
    [message] = bench.until(partial_reads)
    bench.resume([process.pid])
    left: int = message.gi_frame.f_locals["body_size"] - message.gi_frame.f_locals["Br"]
    return left


def in_pipe(process: Any) -> int:
    return int.from_bytes(ioctl(process.outqR_fd, FIONREAD, b"\0" * 4), sys.byteorder)


def kill(process: Any) -> None:
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: process.exitcode is not None)


def test_a_result_of_which_the_rest_is_in_the_pipe_of_a_dead_process_is_read(start):
    """Its rest was read as the start of a message: a job that had finished got a strike."""
    bench = start(1).up()
    [process] = bench.pool._pool
    request = bench.send(bytes, 100_000)
    left = read_in_part(bench, process, request)
    eventually(lambda: in_pipe(process) == left)
    kill(process)
    bench.pool.maintain_pool()
    assert request.ended_by == bytes(100_000)


def test_a_result_that_a_dead_process_has_not_written_in_full_is_no_error(start):
    bench = start(1).up()
    [process] = bench.pool._pool
    request = bench.send(bytes, 50_000_000)
    read_in_part(bench, process, request)
    kill(process)
    bench.pool.maintain_pool()
    assert request.accepted_by == process.pid
    assert not request.ended_by
    assert not bench.pool._cache, "the job is lost"
    bench.up()


def shut_down(bench: Bench) -> Thread:
    """End the loop and wait for the jobs, as a warm shutdown does; return the thread that waits."""
    bench.hub.reset()
    bench.pool.close()
    joining = Thread(target=bench.pool.join, daemon=True)
    joining.start()
    return joining


def test_a_result_that_the_loop_has_read_in_part_is_read_on_at_a_shutdown(start):
    """Celery 5.5 and 5.6 took the rest for the start of a result, and waited for ever."""
    bench = start(1).up()
    [process] = bench.pool._pool
    request = bench.send(bytes, 1_000_000)
    read_in_part(bench, process, request)
    shut_down(bench).join(20)
    assert request.ended_by == bytes(1_000_000)


def test_a_process_that_dies_while_it_sends_a_result_does_not_hold_up_a_shutdown(start):
    """Celery waited for the rest of the result for ever."""
    bench = start(1).up()
    [process] = bench.pool._pool
    bench.stop(process.pid)
    request = bench.send(bytes, 50_000_000)
    bench.until(lambda: bench.job_of(request)._write_to)
    bench.resume([process.pid])
    eventually(lambda: in_pipe(process) > 60_000)
    bench.stop(process.pid)
    joining = shut_down(bench)
    eventually(lambda: in_pipe(process) == 0, message="the pool waits for the rest")
    kill(process)
    joining.join(20)
    assert not joining.is_alive()
    assert request.accepted_by == process.pid
    assert not request.ended_by
    assert not bench.pool._cache, "the job is lost"


def test_a_job_that_is_not_written_when_a_flush_begins_is_requeued(start):
    """Celery 5.5 kept it in its table of jobs while it wrote another: it stayed in flight."""
    bench = start(2).up()
    bench.stop(*bench.pids())
    large = bench.send(len, b"x" * 1_000_000)  # more than a pipe has room for
    bench.until(lambda: bench.job_of(large)._write_to)
    small = bench.send()
    Timer(0.5, bench.resume, [bench.pids()]).start()  # a flush writes what it has begun with
    bench.flush()
    assert bench.requeued == [small]
    bench.until(lambda: large.ended_by)


def test_a_job_of_which_a_part_is_in_the_pipe_of_a_process_that_dies_in_a_flush_is_requeued(start):
    """Celery forgot it, and gave the pipe to the next process, which waited for the rest."""
    bench = start(2).up()
    pids = bench.pids()
    bench.stop(*pids)
    requests = [bench.send(len, b"x" * 1_000_000) for _ in pids]
    bench.until(lambda: all(bench.job_of(request)._write_to for request in requests))
    process_of = {request: bench.job_of(request)._write_to for request in requests}
    flush_writer = bench.pool._flush_writer
    killed: list[Any] = []

    def kill_the_other(process: Any, writer: Any) -> None:
        if not killed:
            [other] = [other for other in bench.pool._pool if other is not process]
            kill(other)
            killed.append(other)
            bench.resume([process.pid])
        flush_writer(process, writer)

    bench.pool._flush_writer = kill_the_other
    bench.flush()
    [unread] = [request for request in requests if process_of[request] in killed]
    assert bench.requeued == [unread]
    bench.until(lambda: all(request.ended_by for request in requests if request is not unread))
    bench.up()
    later = [bench.send() for _ in pids]
    bench.until(lambda: all(request.ended_by for request in later))
