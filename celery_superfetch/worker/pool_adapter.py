"""Adapters of Celery's pools: what the gate and its requests have to know of a pool.

There is one for each kind: processes, threads, greenlets, and the solo pool, which runs a job in
the thread that delivers it. An adapter says how many jobs can run, what the pool is to call for a
job, and when a job has left the pool. The gate (``gate.py``), which starts jobs when the pool has a
slot free, makes the adapter and uses it, as do its requests (``request.py``) and the handler of a
cold shutdown (``stopping.py``).

An adapter is in memory alone. If the worker dies, the reaper of another worker recovers its jobs.
If a pool process dies, billiard reports that to the request of its job, which recovers the job.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

celery concurrency.
    know which pool it is: base:BasePool.is_green base:BasePool.options solo:TaskPool
        thread:TaskPool prefork:TaskPool.on_start~threads
    know how many greenlets can run: gevent:TaskPool._pool
    know that a thread has ended its job: thread:ApplyResult.f
    know whether a thread for a job comes up: thread:TaskPool.executor
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from celery.concurrency import solo, thread
from celery.exceptions import Ignore

from .in_process import run_in_worker
from .outcomes import run_and_check, run_and_pack
from .pool_slots import PoolSlots
from .prefork import apply_repairs, mark_reads
from .run_job import run_job

#: The function that a pool calls for a job, and its arguments.
Call = tuple[Callable[..., Any], tuple[Any, ...]]


class NotStarted(Ignore):
    """Refusal of a pool's thread to start a job that the gate has withdrawn."""


class PoolAdapter:
    """Adapter of a pool. The defaults are those of a pool that runs jobs in the worker's own
    process."""

    #: True: the pool calls a callback of the request at the end of each job, and the job's slot is
    #: free then (``settling.call_back``). False: the slot becomes free a moment later, or the pool
    #: calls no callback for a job that is killed before it begins; so the gate has ``watch`` find
    #: the end.
    ends_by_callback = False
    is_inline = False  # a job blocks the thread that hands it to the pool
    #: A pool of processes that the worker's loop serves, which is Celery's default. (Threads of the
    #: pool may serve it instead.)
    is_prefork = False
    pool_slots: PoolSlots | None = None  # the processes, if ``is_prefork``
    #: The worker's loop handles a message of a pool process, and not the end of a job.
    is_reading = False

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    @property
    def slots(self) -> int:
        """Number of jobs that can run at once."""
        return int(self.pool.limit)

    def call(self, request: Any) -> Call:
        """Return what the pool is to call for a job. It gets the body that the request has decoded,
        since decoding it again would double the cost."""
        return run_and_check, (run_in_worker, request, self.is_inline, *request.job(decoded=True))

    def accept_callback(self, request: Any) -> Callable[..., Any]:
        """Return the callback by which the pool reports that a job begins."""
        accept: Callable[..., Any] = request.on_accepted
        return accept

    def run_to_end(self, call: Callable[[], object]) -> BaseException | None:
        """Make a call that belongs to a job, and return what was raised meanwhile to end the job.
        Only the greenlet of a job can be interrupted so; the other pools make the call alone."""
        call()
        return None

    @contextmanager
    def reading(self, value: bool = True) -> Iterator[None]:
        """Set ``is_reading`` inside this context."""
        before, self.is_reading = self.is_reading, value
        try:
            yield
        finally:
            self.is_reading = before

    def is_at_work(self) -> bool:
        """Return whether a signal handler that interrupts this thread must not stop the pool: the
        thread handles a message of a pool process (``is_reading``)."""
        return self.is_reading

    def receivers(self) -> list[Any]:
        """Return the processes to which a job has been written in part. Such a process runs no job
        yet: it waits for the rest."""
        return []

    def watch(self, result: Any, ended: Callable[..., object]) -> None:
        """Call ``ended`` when a job has left the pool, and its slot is free. For a pool without
        ``ends_by_callback``.

        Arguments:
            result: what the pool returned for the job.
        """
        raise NotImplementedError


class ProcessAdapter(PoolAdapter):
    """A pool of processes.

    Arguments:
        requeue: called with the request of a job that the pool drops before its start.
        pump: called when a process has become free.
    """

    ends_by_callback = True

    def __init__(
        self, worker: Any, requeue: Callable[[Any], None], pump: Callable[[], object]
    ) -> None:
        super().__init__(worker.pool)
        # Celery's option ``threads``: the pool's own threads serve it, and not the worker's loop.
        self.is_prefork = not self.pool.options.get("threads", True)
        if self.is_prefork:
            apply_repairs(self.pool, requeue, worker.hub.call_later)
            mark_reads(self.pool, self.reading)
            load_timeout_s = worker.app.conf.worker_proc_alive_timeout
            self.pool_slots = PoolSlots(self.pool, pump, load_timeout_s)

    @property
    def slots(self) -> int:
        """The number of processes that the pool keeps; 0 when it has ended. Celery's handler of a
        cold shutdown ends it, and may have interrupted this thread anywhere."""
        try:
            return int(self.pool.num_processes)
        except AttributeError:
            return 0

    def receivers(self) -> list[Any]:
        """Return the processes for whose rest of a job a cold shutdown has to wait: after it has
        begun, nothing more is written to them.

        Report: A cold shutdown never ends if a job is written to its process in part.
        """
        return [] if self.pool_slots is None else self.pool_slots.receivers()

    def call(self, request: Any) -> Call:
        """Return what the pool is to call for a job; it can be pickled."""
        return run_and_pack, (run_job, *request.job())


class ThreadAdapter(PoolAdapter):
    """A pool of threads."""

    def is_at_work(self) -> bool:
        """Return whether the pool's lock is held. A thread of the pool starts under that lock, and
        its job may send the signal at once."""
        return bool(self.pool.executor._shutdown_lock.locked())

    def accept_callback(self, request: Any) -> Callable[..., Any]:
        """Return the callback that a thread of the pool calls before it begins a job. It raises
        NotStarted if the gate has withdrawn the job.

        The pool may have put the job into its queue and then failed to start a thread. Then both
        the gate and a thread that becomes free want the job: ``request.try_take`` returns True only
        to the first of them.
        """
        request.try_take = try_take = partial(threading.Lock().acquire, False)
        return partial(_accept, try_take, request.on_accepted)

    def watch(self, result: Any, ended: Callable[..., object]) -> None:
        result.f.add_done_callback(ended)


def _accept(try_take: Callable[[], bool], accept: Callable[..., Any], *args: Any) -> Any:
    if not try_take():
        raise NotStarted("withdrawn")
    return accept(*args)


class GreenletAdapter(PoolAdapter):
    """A pool of greenlets."""

    @property
    def slots(self) -> int:
        """Number of jobs that can run at once. (Before Celery 5.7 the pool's ``limit`` stays as it
        was when the pool grows or shrinks; ``num_processes`` is on 5.5 the number of jobs that run
        at the moment.)"""
        return int(self.pool._pool.size)

    def accept_callback(self, request: Any) -> Callable[..., Any]:
        return partial(self._accept, request)

    def _accept(self, request: Any, *args: Any) -> None:
        """Call ``on_accepted`` to its end. Then raise what was to end the job: it does not run. The
        pool makes no callback for a job that Celery kills here, so this reports the outcome that
        the pool reports of one that is killed in its run."""
        ended_by = self.run_to_end(partial(request.on_accepted, *args))
        if ended_by is None:
            return
        is_time_limit = isinstance(ended_by, import_module("gevent").Timeout)
        if request.was_ended_by_celery and not (is_time_limit or request.acknowledged):
            request.on_outcome((False, None, None))
        raise ended_by

    def run_to_end(self, call: Callable[[], object]) -> BaseException | None:
        """Make the call in a greenlet of its own, and wait for it. The pool raises a hard time
        limit, and a kill, in the job's greenlet, wherever that waits. If one interrupted an ack
        that waits for a lock or for the server, the job would stay in flight for as long as this
        worker lives."""
        greenlet = import_module("gevent").spawn(call)
        ended_by: BaseException | None = None
        while not greenlet.ready():
            try:
                greenlet.join()
            except BaseException as exc:  # gevent's Timeout and GreenletExit are no ``Exception``
                ended_by = exc
        return ended_by or greenlet.exception

    def watch(self, result: Any, ended: Callable[..., object]) -> None:
        result.rawlink(ended)  # not ``link``, which would start one more greenlet


class SoloAdapter(PoolAdapter):
    """The solo pool."""

    is_inline = True

    def watch(self, result: Any, ended: Callable[..., object]) -> None:
        """Call ``ended`` at once: the job has been run."""
        ended()


def adapter_of(
    worker: Any, requeue: Callable[[Any], None], pump: Callable[[], object]
) -> PoolAdapter:
    """Return the adapter of a worker's pool, which has started. The arguments are those of
    ``ProcessAdapter``; a pool of an unknown kind gets that one, too."""
    pool = worker.pool
    if pool.is_green:
        return GreenletAdapter(pool)
    if isinstance(pool, thread.TaskPool):
        return ThreadAdapter(pool)
    if isinstance(pool, solo.TaskPool):
        return SoloAdapter(pool)
    return ProcessAdapter(worker, requeue, pump)


def pool_name_of(pool: Any) -> str:
    """Return the name of a pool's kind, for owner records: that of its module; Celery calls the
    pool of the module ``thread`` "threads"."""
    name: str = type(pool).__module__.rpartition(".")[2]
    return "threads" if name == "thread" else name
