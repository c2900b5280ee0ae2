"""Slots of a prefork pool: which of its processes can start a job now, and what happens to a job
that a process was given but does not start.

``ProcessAdapter`` (``pool_adapter.py``) makes a ``PoolSlots`` when the pool has started, and the
gate (``gate.py``) asks it before it starts a job. A job that its process will not start returns to
the gate, which starts it in another process: the process leaves, has died, or received the job
after the job's deadline.

If a process dies that has started its job, billiard reports that to the job's request
(``LeasedRequest.on_lost``), which recovers the job with a strike. All of this is in memory: if the
worker dies, the reaper of another worker recovers its jobs.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports). To
return a job there means to return it to the gate:

Foreign names:

billiard pool:ApplyResult.
    know whose job it is: _accept_callback _write_to
    know whether a process has begun with a job: _accepted
    return a job that has not begun: discard()
billiard ._pool.
    know its processes and their jobs: _cache.values() _pool.__iter__() _processes.__index__()
    return a job whose process has died: on_job_process_down(job,pid)
    have no slot free while the pool looks at its processes: maintain_pool()
celery concurrency.
    write no job to a busy process: base:BasePool.options
    know whether a job is written in full: asynpool:_get_job_writer(job)
    know which process is up, and idle: asynpool:AsynPool.dead
celery .
    know which process is up, and idle: _pool._all_inqueues.discard(fd)
        _pool._busy_workers.discard(fd) _pool._result_handler.state_handlers.get(15)
    replace pipes with a job in them: _pool._process_cleanup_queues(proc)
        _pool.on_partial_read(job,proc)
    end no process that has a job: shrink(n)
    know what no process was given yet: _pool.outbound_buffer.__iter__()
    keep busy processes busy through a lost connection: flush()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from celery.concurrency.asynpool import WORKER_UP, _get_job_writer
from celery.utils.log import get_logger

from ..model.log_text import one_line_each
from .outcomes import TooLate
from .pool_process import LEAVING, NOT_STARTED
from .prefork import request_of

logger = one_line_each(get_logger(__name__))

#: Passed to the pool in the place of the unread job in the pipes that it destroys. The gate has
#: that job again, so the pool must not put it back; it puts back only a job that no process has
#: begun.
BEGUN = SimpleNamespace(_accepted=True)

LOADING_WARN_S = 10.0  # for so long jobs may wait for processes that load before the log says so
LOADING_CHECK_S = 1.0
LOADING_REPEAT_S = 300.0


def write_to_idle_processes(pool: Any) -> None:
    """Make a prefork pool that has not started write each job to an idle process. Celery's
    ``-O fast`` would write the job of an idle process into the pipe of a busy one."""
    pool.options["sched_strategy"] = "fair"


class PoolSlots:
    """The processes of a started pool as slots for jobs.

    A slot is free if its process is up (its initializer has returned), has no job and is not
    leaving. Without this class a job would be handed to the pool while its processes still load.
    The job would wait there, recorded as running: its deadline would pass, and if the worker was
    killed, the job would get a strike although it never ran.

    The class replaces methods of the pool and adds handlers for the messages of ``PoolProcess``.
    Only the thread of the worker's loop calls it.

    Arguments:
        pool: Celery's prefork pool, started.
        on_free: called when a slot has become free.
        load_timeout_s: seconds after which Celery kills a replacement that is not up.
    """

    def __init__(self, pool: Any, on_free: Callable[[], object], load_timeout_s: float) -> None:
        self.processes = processes = pool._pool
        self.on_free = on_free
        self._load_timeout_s = load_timeout_s
        self._up: WeakSet[Any] = WeakSet()
        self._leaving: WeakSet[Any] = WeakSet()
        self._with_unread_job: WeakSet[Any] = WeakSet()  # their pipes must not be used again
        self._is_closed = False
        self._next_check = self._next_report = 0.0  # monotonic s
        self._loading_since: float | None = None  # monotonic s
        handlers = processes._result_handler.state_handlers
        self._mark_up = handlers[WORKER_UP]
        handlers[WORKER_UP] = self._on_up
        handlers[LEAVING] = self._on_leaving
        handlers[NOT_STARTED] = self._on_not_started
        self._job_process_down = processes.on_job_process_down
        processes.on_job_process_down = self._on_job_process_down
        self._cleanup_queues = processes._process_cleanup_queues
        processes._process_cleanup_queues = self._on_cleanup_queues
        pool.shrink = self._shrink
        self._maintain = processes.maintain_pool
        # Celery calls it by both objects.
        processes.maintain_pool = pool.maintain_pool = self._maintain_pool
        self._flush = pool.flush
        pool.flush = self._flush_pool

    @property
    def idle_count(self) -> int:
        """Number of free slots; negative if more jobs wait in the pool than processes are idle."""
        processes = self.processes
        if self._is_closed:
            return 0
        up_count = len(processes._all_inqueues) - len(processes._busy_workers)
        return up_count - len(processes.outbound_buffer)

    def report_loading(self, waiting_count: int) -> None:
        """Log a warning if no process has come up for long while ``waiting_count`` jobs wait. The
        gate calls this when it could not start a job."""
        now = monotonic()
        if now < self._next_check:
            return
        self._next_check = now + LOADING_CHECK_S
        loading = [process.pid for process in self.processes._pool if self._loads(process)]
        if self.idle_count > 0 or not loading:
            self._loading_since = None
            return
        if self._loading_since is None:
            self._loading_since = now
        waited_s = now - self._loading_since
        if waited_s < LOADING_WARN_S or now < self._next_report:
            return
        self._next_report = now + LOADING_REPEAT_S
        logger.warning(
            "Jobs wait for a pool process to load (jobs=%d, waited_s=%.0f, pids=%s): receivers of "
            "worker_process_init have not returned. If loading takes longer than "
            "worker_proc_alive_timeout (%g s), Celery kills the process: raise that setting.",
            waiting_count,
            waited_s,
            ",".join(map(str, loading)),
            self._load_timeout_s,
        )

    def receivers(self) -> list[Any]:
        """Return the processes to which a job has been written in part; see
        ``PoolAdapter.receivers``. A signal handler calls this."""
        return [
            job._write_to
            for job in list(self.processes._cache.values())
            if job._write_to and (writer := _get_job_writer(job)) and writer.gi_frame is not None
        ]

    def _loads(self, process: Any) -> bool:
        """Return whether a process has not come up yet."""
        is_known = process in self._up or process in self._leaving
        return not is_known and process.exitcode is None

    # -- messages of the processes

    def _process_of(self, pid: int) -> Any:
        return next((process for process in self.processes._pool if process.pid == pid), None)

    def _on_up(self, pid: int) -> None:
        self._mark_up(pid)
        process = self._process_of(pid)
        if process is not None:
            self._up.add(process)
        if process in self._leaving:  # ``_shrink`` ended it while it loaded
            self._exclude(process)
            # In its first milliseconds a process still has the handler of its parent, which
            # swallows SIGTERM: it would run on, without a job, and its slot would be lost.
            process.terminate_controlled()
        self._loading_since = None
        self.on_free()

    def _on_leaving(self, pid: int) -> None:
        """Write no more jobs to a process that is about to end, and withdraw the jobs of the gate
        that were written to it and that it has not accepted. Celery puts other jobs back when the
        process has ended."""
        process = self._process_of(pid)
        if process is None:
            return
        self._exclude(process)
        for job in list(self.processes._cache.values()):
            is_unread = job._write_to is process and not (job._accepted or job.ready())
            if is_unread and self._is_ours(job):
                self._withdraw(job, process)

    def _on_not_started(self, pid: int, number: int) -> None:
        """Return to the gate a job that its process has dropped, since the job's deadline had
        passed."""
        process = self._process_of(pid)
        if process is not None:
            self.processes._busy_workers.discard(process.inqW_fd)
        job = self.processes._cache.get(number)
        if job is not None:
            self._return(job)
        self.on_free()

    # -- processes that end

    def _exclude(self, process: Any) -> None:
        """Exclude a process that is about to end from those that get jobs."""
        self._leaving.add(process)
        fd = process.inqW_fd
        # When the pool destroys the pipes of a process (``dead``), others may get their numbers.
        if process in self._up and not process.dead:
            self.processes._all_inqueues.discard(fd)
            self.processes._busy_workers.discard(fd)

    def _shrink(self, n: int = 1) -> None:
        """End ``n`` processes, of which none has a job.

        Celery's own method ends any process that has accepted no job. A job that was just written
        to it would be lost with it, and get a strike if it had just started. And a process that is
        about to end anyway would be counted twice, so that the pool kept one too many.

        Raises:
            ValueError: fewer than ``n`` processes have no job.
        """
        processes = self.processes
        for _ in range(n):
            stays = [process for process in processes._pool if process not in self._leaving]
            # If a process is missing already, it is enough not to replace it.
            if len(stays) >= processes._processes:
                process = next(self._spare(), None)
                if process is None:
                    raise ValueError(
                        "The pool cannot shrink: each of its processes has a job. "
                        "Try again when one is idle."
                    )
                self._exclude(process)
                process.terminate_controlled()
            processes._processes -= 1

    def _spare(self) -> Iterator[Any]:
        """Yield processes without a job: first those that still load."""
        processes = self.processes
        busy: set[Any] = set()
        busy_pids: set[int] = set()
        for job in processes._cache.values():
            if not job.ready():
                busy.add(job._write_to)
                busy_pids.update(job.worker_pids())
        spare = [
            process
            for process in processes._pool
            if process not in busy | {*self._leaving} and process.pid not in busy_pids
        ]
        yield from filter(self._loads, spare)
        # Each job in the outbound buffer was given to no process yet, and needs one of these.
        up = [process for process in spare if not self._loads(process)]
        yield from up[len(processes.outbound_buffer) :]

    def _withdraw(self, job: Any, process: Any) -> None:
        """Return to the gate a job that was written to a process which will not read it."""
        self._with_unread_job.add(process)
        writer = _get_job_writer(job)
        if writer is not None:  # a part of it is still to be written to the pipe
            writer.close()
        self._return(job)

    def _on_cleanup_queues(self, process: Any) -> None:
        """Replace the pipes of a process that has ended, if an unread job is in them: Celery gives
        them to the next process, which would run that job."""
        if process in self._with_unread_job:
            self.processes.on_partial_read(BEGUN, process)
        else:
            self._cleanup_queues(process)

    def _on_job_process_down(self, job: Any, pid: int) -> None:
        """Return a job to the gate if its process has ended before it started the job. Celery gives
        it to the next process that comes up, however late; the gate sets a new deadline."""
        self._job_process_down(job, pid)
        buffer = self.processes.outbound_buffer
        if job in buffer and self._is_ours(job):
            buffer.remove(job)
            self._return(job)

    # -- jobs that have not begun

    def _is_ours(self, job: Any) -> bool:
        """Return whether the pool's job came through the gate; others (batches) have no claim."""
        return getattr(request_of(job._accept_callback), "delivery", None) is not None

    def _return(self, job: Any) -> None:
        """Remove a job that was not started from the pool. Its request gets the outcome
        ``TooLate`` as if the job had returned it, and so the gate starts the job again."""
        job.discard()
        if not job.ready():
            request_of(job._accept_callback).on_outcome(TooLate())

    # -- while the pool replaces its processes

    @contextmanager
    def _closed(self) -> Iterator[None]:
        """Count no slot as free inside this context (``idle_count`` is 0). If the gate started a
        job meanwhile, the pool might give it to a process that has died, or forget it in a
        flush."""
        was_closed = self._is_closed
        self._is_closed = True
        try:
            yield
        finally:
            self._is_closed = was_closed

    def _maintain_pool(self) -> None:
        with self._closed():
            self._maintain()

    def _flush_pool(self) -> None:
        """Flush the pool, as Celery does at a lost connection, and mark processes that run a job as
        busy: Celery 5.5 forgets that, and would give them the next jobs."""
        processes = self.processes
        with self._closed():
            self._flush()
        # No job here is that of a process whose successor has its descriptors: Celery's pool ends a
        # lost job when it replaces the process, and not after billiard's ``lost_worker_timeout``.
        for job in processes._cache.values():
            process = job._write_to
            if process is not None and not job.ready():
                processes._busy_workers |= {process.inqW_fd} & processes._all_inqueues
