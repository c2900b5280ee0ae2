"""Adapters of Celery's pools: what the gate and its requests have to know of a pool.

There is one for each kind: processes, threads, greenlets, and the solo pool, which runs a job in
the thread that delivers it. An adapter says how many jobs can run, what the pool is to call for a
job, and when a job has left the pool. The gate makes it; adapters are in memory alone. If the
worker dies, the reaper recovers its jobs.

Foreign names:

celery concurrency.
    know which pool it is: base:BasePool.is_green base:BasePool.options solo:TaskPool
        thread:TaskPool prefork:TaskPool.on_start~threads
    know that a thread has ended its job: thread:ApplyResult.f
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.concurrency import solo, thread
from celery.exceptions import Ignore

from .in_process import run_in_worker
from .outcomes import run_and_check, run_and_pack
from .pool_slots import PoolSlots
from .prefork import mend
from .run_job import run_job

#: The function that a pool calls for a job, and its arguments.
Call = tuple[Callable[..., Any], tuple[Any, ...]]


class NotStarted(Ignore):
    """Refusal of a pool's thread to start a job that the gate has withdrawn."""


class PoolAdapter(ABC):
    """Adapter of a pool. The defaults are those of a pool that runs jobs in the worker's own
    process."""

    #: The pool calls a callback at the end of each job, and the slot is free then. False: the slot
    #: is free only a moment later, or the pool calls none for a job that is killed before it
    #: begins; ``watch`` finds the end.
    ends_by_callback = False
    is_inline = False  # a job blocks the thread that hands it to the pool
    is_prefork = False  # a pool of processes that the worker's loop serves
    pool_slots: PoolSlots | None = None  # of such a pool

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    @property
    def slots(self) -> int:
        """Number of jobs that can run at once. Not ``num_processes`` of a gevent pool: on Celery
        5.5 that is the number of those that run."""
        return int(self.pool.limit)

    def call(self, request: Any) -> Call:
        """Return what the pool is to call for a job. The body is the one that the request has
        decoded: decoding it again would double the cost."""
        return run_and_check, (run_in_worker, request, self.is_inline, *request.job(decoded=True))

    def accept_callback(self, request: Any) -> Callable[..., Any]:
        """Return the callback by which the pool reports that a job begins."""
        accept: Callable[..., Any] = request.on_accepted
        return accept

    @abstractmethod
    def watch(self, result: Any, ended: Callable[..., object]) -> None:
        """Call ``ended`` when a job has left the pool, and its slot is free.

        Arguments:
            result: what the pool returned for the job.
        """


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
        # Celery's option: threads of the pool serve it, and not the worker's loop.
        self.is_prefork = not self.pool.options.get("threads", True)
        if self.is_prefork:
            mend(self.pool, requeue, worker.hub.call_later)
            load_timeout_s = worker.app.conf.worker_proc_alive_timeout
            self.pool_slots = PoolSlots(self.pool, pump, load_timeout_s)

    @property
    def slots(self) -> int:
        """The number of processes that the pool keeps."""
        return int(self.pool.num_processes)

    def call(self, request: Any) -> Call:
        """Return what the pool is to call for a job; it can be pickled."""
        return run_and_pack, (run_job, *request.job())

    def watch(self, result: Any, ended: Callable[..., object]) -> None:
        """Do nothing: the callback of the job's end calls ``Gate.ended``."""


class ThreadAdapter(PoolAdapter):
    """A pool of threads."""

    def accept_callback(self, request: Any) -> Callable[..., Any]:
        """Return the callback that a thread of the pool calls before it begins a job. It raises
        NotStarted if the gate has withdrawn the job: the pool may have put it into its queue and
        then failed to start a thread. ``request.take`` is true for its first caller alone."""
        request.take = take = partial(threading.Lock().acquire, False)
        return partial(_accept, take, request.on_accepted)

    def watch(self, result: Any, ended: Callable[..., object]) -> None:
        result.f.add_done_callback(ended)


def _accept(take: Callable[[], bool], accept: Callable[..., Any], *args: Any) -> Any:
    if not take():
        raise NotStarted("withdrawn")
    return accept(*args)


class GreenletAdapter(PoolAdapter):
    """A pool of greenlets."""

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
    ``ProcessAdapter``, as which a pool of an unknown kind counts."""
    pool = worker.pool
    if pool.is_green:
        return GreenletAdapter(pool)
    if isinstance(pool, thread.TaskPool):
        return ThreadAdapter(pool)
    if isinstance(pool, solo.TaskPool):
        return SoloAdapter(pool)
    return ProcessAdapter(worker, requeue, pump)
