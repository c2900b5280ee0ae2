"""The processes of a prefork pool as slots for jobs: which of them may get one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any
from weakref import WeakSet

from celery.concurrency.asynpool import SCHED_STRATEGY_FAIR, WORKER_UP, _get_job_writer
from celery.utils.log import get_logger

from .outcomes import TooLate
from .pool_process import LEAVING, NOT_STARTED
from .prefork import request_of

logger = get_logger(__name__)

LOADING_WARN_S = 10.0  # for so long jobs may wait for processes that load before the log says so
LOADING_CHECK_S = 1.0
LOADING_REPEAT_S = 300.0


class PoolSlots:
    """The processes of a started pool as slots for jobs.

    A slot is free if its process is up (its initializer has returned), has no job and reads another
    one. Celery hands a job to its pool as soon as a process is to be there: the job then waits for
    the process to load, recorded as running. Its deadline passes meanwhile, and if the worker is
    killed, the job gets a strike although it never began.

    Only the worker's loop calls this.
    """

    def __init__(self, pool: Any, on_free: Callable[[], object]) -> None:
        self.processes = processes = pool._pool
        self.on_free = on_free
        self._leaving: WeakSet[Any] = WeakSet()
        self._with_unread_job: WeakSet[Any] = WeakSet()  # their pipes must not be used again
        self._is_closed = False
        self._next_check = self._next_report = 0.0  # monotonic s
        self._loading_since: float | None = None  # monotonic s
        #: Celery's -O fast would write the job of an idle process into the pipe of a busy one.
        processes.sched_strategy = SCHED_STRATEGY_FAIR
        handlers = processes._result_handler.state_handlers
        self._mark_up = handlers[WORKER_UP]
        handlers[WORKER_UP] = self._on_up
        handlers[LEAVING] = self._on_leaving
        handlers[NOT_STARTED] = self._on_not_started
        self._job_process_down = processes.on_job_process_down
        processes.on_job_process_down = self._on_job_process_down
        self._cleanup_queues = processes._process_cleanup_queues
        processes._process_cleanup_queues = self._on_cleanup_queues
        processes.shrink = pool.shrink = self._shrink
        self._maintain = processes._maintain_pool
        processes._maintain_pool = self._maintain_pool
        self._flush = pool.flush
        pool.flush = self._flush_pool

    @property
    def idle_count(self) -> int:
        """How many jobs a process would read at once; may be negative."""
        processes = self.processes
        if self._is_closed:
            return 0
        up_count = len(processes._all_inqueues) - len(processes._busy_workers)
        return up_count - len(processes.outbound_buffer)

    def report_loading(self, waiting_count: int) -> None:
        """Log a warning if jobs wait, and have waited for long, for processes that load."""
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
            "%d jobs wait for a pool process: for %.0f s none has come up (loading: pids=%s). They "
            "start when the receivers of worker_process_init have returned. Celery kills a "
            "replacement that is not up within worker_proc_alive_timeout (%g s): a longer load "
            "needs a larger one.",
            waiting_count,
            waited_s,
            ",".join(map(str, loading)),
            self.processes._proc_alive_timeout,
        )

    def _loads(self, process: Any) -> bool:
        """Whether a process has not come up yet."""
        is_up = self.processes._fileno_to_inq.get(process.inqW_fd) is process
        return not is_up and process not in self._leaving and process.exitcode is None

    # -- messages of the processes

    def _process_of(self, pid: int) -> Any:
        return next((process for process in self.processes._pool if process.pid == pid), None)

    def _on_up(self, pid: int) -> None:
        self._mark_up(pid)
        process = self._process_of(pid)
        if process in self._leaving:  # it was told to end while it loaded
            self._close(process)
        self._loading_since = None
        self.on_free()

    def _on_leaving(self, pid: int) -> None:
        process = self._process_of(pid)
        if process is None:
            return
        self._close(process)
        for job in list(self.processes._cache.values()):
            if job._write_to is process and not (job._accepted or job.ready()):
                self._withdraw(job, process)

    def _on_not_started(self, pid: int, number: int) -> None:
        process = self._process_of(pid)
        if process is not None:
            self.processes._busy_workers.discard(process.inqW_fd)
        job = self.processes._cache.get(number)
        if job is not None:
            self._return(job)
        self.on_free()

    # -- processes that end

    def _close(self, process: Any) -> None:
        """Give a process that is about to end no more jobs."""
        self._leaving.add(process)
        fd = process.inqW_fd
        if self.processes._fileno_to_inq.get(fd) is process:
            self.processes._all_inqueues.discard(fd)
            self.processes._busy_workers.discard(fd)

    def _shrink(self, n: int = 1) -> None:
        """Make the pool smaller by so many processes, of which none has a job.

        Celery ends any process that has accepted none: one that was given a job takes it along, and
        the job gets a strike if it has just begun. And it ends one that is about to end anyway, so
        that the pool has a process too many."""
        processes = self.processes
        for _ in range(n):
            stays = [process for process in processes._pool if process not in self._leaving]
            if len(stays) >= processes._processes:  # else one that is missing is not replaced
                process = next(self._spare(), None)
                if process is None:
                    raise ValueError("The pool cannot shrink: each of its processes has a job.")
                self._close(process)
                process.terminate_controlled()
            processes._processes -= 1
            if processes._putlock is not None:
                processes._putlock.shrink()
            processes.on_shrink(1)

    def _spare(self) -> Iterator[Any]:
        """Find processes without a job: first those that still load."""
        processes = self.processes
        busy: set[Any] = set()
        busy_pids: set[int] = set()
        for job in processes._cache.values():
            if not job.ready():
                busy |= {job._write_to, job._scheduled_for}
                busy_pids.update(job.worker_pids())
        spare = [
            process
            for process in processes._pool
            if process not in busy | {*self._leaving} and process.pid not in busy_pids
        ]
        yield from filter(self._loads, spare)
        # Jobs that no process was given yet need one each.
        up = [process for process in spare if not self._loads(process)]
        yield from up[len(processes.outbound_buffer) :]

    def _withdraw(self, job: Any, process: Any) -> None:
        """Take back a job that was written to a process, which will not read it."""
        self._with_unread_job.add(process)
        writer = _get_job_writer(job)
        if writer is not None:  # the pipe had no room for all of it
            writer.close()
        if self._is_ours(job):
            self._return(job)
        else:
            job._write_to = job._scheduled_for = None
            self.processes._put_back(job)

    def _on_cleanup_queues(self, process: Any) -> None:
        """Replace the pipes of a process that has ended, if a job is in them; else the next process
        gets them."""
        if process not in self._with_unread_job or process.dead:
            return self._cleanup_queues(process)
        process.dead = True
        if self.processes.destroy_queues(self.processes._find_worker_queues(process), process):
            self.processes._queues[self.processes.create_process_queues()] = None

    def _on_job_process_down(self, job: Any, pid: int) -> None:
        """Called for each job whose process has ended. Celery gives one that was not begun to the
        next process that comes up, whenever that is; the gate shall decide on it again."""
        self._job_process_down(job, pid)
        buffer = self.processes.outbound_buffer
        if job in buffer and self._is_ours(job):
            buffer.remove(job)
            self._return(job)

    # -- jobs that have not begun

    def _is_ours(self, job: Any) -> bool:
        return getattr(request_of(job._accept_callback), "delivery", None) is not None

    def _return(self, job: Any) -> None:
        """Take a job that has not begun out of the pool; the gate hands it over again."""
        job.discard()
        if job.ready():
            return
        if self.processes._putlock is not None:
            self.processes._putlock.release()  # as for any job that has ended
        job._set(None, (True, TooLate()))

    # -- while the pool looks at its processes

    @contextmanager
    def _closed(self) -> Iterator[None]:
        """Have no slot free: what the pool gets meanwhile it may give to a process that has died,
        or forget when it is flushed."""
        was, self._is_closed = self._is_closed, True
        try:
            yield
        finally:
            self._is_closed = was

    def _maintain_pool(self) -> None:
        with self._closed():
            self._maintain()

    def _flush_pool(self) -> None:
        """Called at a lost connection. Celery 5.5 forgets which processes are busy, and would give
        them the next jobs."""
        processes = self.processes
        with self._closed():
            self._flush()
        for job in processes._cache.values():
            process = job._write_to or job._scheduled_for
            if process is not None and not job.ready():
                processes._busy_workers |= {process.inqW_fd} & processes._all_inqueues
