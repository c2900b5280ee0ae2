"""Repairs of Celery's prefork pool (``celery.concurrency.asynpool``, which the worker's loop
serves). Without them the pool may lose a job, run one twice, or end the worker.

``ProcessAdapter`` (``pool_adapter.py``) applies all repairs once, by ``apply_repairs``, when the
pool has started. Each repair replaces one or two methods of the pool, which Celery then calls in
the worker's loop, and names the bug report in ``docs/contribute/reports.md``, if there is one,
whose fix would make the repair needless. Five functions are no repairs: ``request_of``,
``drop_unsendable``, ``mark_reads``, ``loses_timers`` and ``unpickle_or_end``.

A *child* is a pool process. If a child dies, its job comes to the job's request (``on_lost``) and
is recovered by this worker, with a strike if it had started. If the worker dies, the reaper of
another worker recovers its jobs: nothing here outlives the worker.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

billiard
    know whose job it is: pool:ApplyResult._accept_callback pool:ApplyResult._write_to
    know whether a child has begun with a job: pool:ApplyResult._accepted
        pool:ApplyResult._time_accepted
    keep the time limits of a job: pool:ApplyResult._soft_timeout pool:ApplyResult._timeout
    take a job back from the pool: pool:ApplyResult.discard()
    forget a child that could not be forked: process:BaseProcess._popen
billiard ._pool.
    know its children and their jobs: _cache.values() _pool.__iter__()
    fork when that harms no one: _processes.__index__() _repopulate_pool(exitcodes) maintain_pool()
    keep the time limits of a job: on_soft_timeout(job) _timeout_handler.on_soft_timeout(job)
    read what a dead child has sent: on_job_process_down(job,pid)
celery concurrency.
    know that a child has died: asynpool:AsynPool.dead
    keep the time limits of a job: asynpool:AsynPool._create_timelimit_handlers~on_timeout_set
    forget a child that could not be forked: asynpool:AsynPool._queues
    listen for the end of each child: asynpool:AsynPool._track_child_process~_sentinel_poll
    end the write of a job to a dead child: asynpool:_get_job_writer(job)
celery .
    keep what runs through a lost connection: flush() _pool.outbound_buffer.__iter__()
    read results on: _pool._result_handler._recv_message(add_reader,fd,callback,load=)
        _pool._result_handler._flush_outqueue(fd,remove,process_index,on_state_change)
        _pool._fileno_to_outq.__getitem__(fd)
    forget the pipes of a lost child: _pool.destroy_queues(queues,proc)
    listen for the end of each child: _pool._untrack_child_process(proc,hub)
    read what a dead child has sent: _pool.process_flush_queues(proc)
"""

from __future__ import annotations

import errno
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from math import inf
from multiprocessing.connection import wait
from stat import S_ISFIFO
from time import monotonic
from traceback import walk_tb
from typing import Any
from weakref import WeakKeyDictionary

import celery
from celery.concurrency.asynpool import _get_job_writer
from celery.utils.log import get_logger

from ..model import fork_gate
from ..model.foreign import describe
from ..model.log_text import one_line_each

logger = one_line_each(get_logger(__name__))

#: Seconds between two tries of a pool to fork, and between two checks of a child that ends.
FORK_RETRY_S = 0.05
#: Checks of such a child; after them only Celery's own check, each 5 s, finds its end.
END_CHECKS_MAX = 100
#: Longest wait (s) for one child's result after the loop has ended. The other children, the ends of
#: children and time limits wait meanwhile. Celery's own wait is as long.
RESULT_WAIT_S = 0.5

#: Seconds between two tries of a pool to fork after the system has refused it, and between two log
#: lines about that.
REFUSED_FORK_RETRY_S = 1.0
REFUSED_FORK_REPEAT_S = 60.0
#: Seconds after which a worker ends whose pool has no process, since each fork was refused.
EMPTY_POOL_MAX_S = 60.0

#: Seconds until a time limit acts that was reached during a lost connection. Celery takes 0 for no
#: limit.
OVERDUE_LIMIT_S = 0.001


def request_of(accept_callback: Any) -> Any:
    """Return the request whose method a pool's callback is; None if it is another function."""
    return getattr(accept_callback, "__self__", None)


def drop_unsendable(pool: Any, request: Any, call: Any) -> bool:
    """Remove from ``pool`` a job that it failed to write to a process. The gate calls this if a
    request could not hand its job to the pool.

    Returns:
        whether the job's arguments (``call``) cannot be pickled, so that no process could get them.
    """
    processes = pool._pool
    if processes is None:  # a cold shutdown has ended the pool
        return False
    for job in list(processes._cache.values()):
        if request_of(job._accept_callback) is request:
            job.discard()
    try:
        return not pickle.dumps(call)  # False: what it returns is never empty
    except Exception as exc:  # what was unpickled need not be picklable
        return not isinstance(exc, MemoryError)


def mark_reads(pool: Any, reading: Callable[[], AbstractContextManager[None]]) -> None:
    """Make ``pool`` handle each message of a child inside the context ``reading``, so that a signal
    handler that interrupts this knows it."""
    processes = pool._pool
    results = processes._result_handler
    begin, flush = results._recv_message, processes.process_flush_queues

    def step_by_step(message: Iterator[None]) -> Iterator[None]:
        """Read a message, as ``message`` does: a generator that stops where the pipe is empty."""
        while True:
            with reading():
                try:
                    next(message)
                except StopIteration:
                    return
            yield

    def begin_marked(*args: Any, **options: Any) -> Iterator[None]:
        return step_by_step(begin(*args, **options))

    def flush_marked(child: Any) -> None:
        with reading():
            flush(child)

    results._recv_message = begin_marked
    processes.process_flush_queues = flush_marked


def apply_repairs(
    pool: Any, requeue: Callable[[Any], None], call_later: Callable[..., object]
) -> None:
    """Apply all repairs to a started pool.

    Arguments:
        requeue: called with the request of a job that the pool drops before its start.
        call_later: of the worker's loop: calls a function after some seconds.
    """
    keep_running_jobs(pool, requeue)
    keep_time_limits(pool)
    keep_partial_results(pool)
    read_without_blocking(pool)
    read_last_messages(pool)
    forget_closed_descriptors(pool)
    rewatch_children(pool, call_later)
    retry_refused_forks(pool, call_later)
    postpone_forks(pool, call_later)


def keep_running_jobs(pool: Any, requeue: Callable[[Any], None]) -> None:
    """Keep the jobs that children run, or have in their pipes, when Celery flushes ``pool`` at a
    lost connection. Celery forgets all that no child has accepted: such a job would run, but its
    result would be dropped, and it would stay in flight for ever. All other jobs are requeued, the
    newest first, since each goes to the front of its queue.

    Report: A task in the pipe of a pool process is forgotten when the connection is lost, and
    still runs.
    """
    flush = pool.flush

    def flush_the_rest() -> None:
        processes = pool._pool
        if processes is None:  # a cold shutdown ends the pool before its consumers
            return
        jobs, unwritten = dict(processes._cache), list(processes.outbound_buffer)
        # Also if the child has exited: the pool may give its pipe to the next child, which then
        # reads the job. But if Celery has destroyed the pipe (``dead``), the job is requeued below.
        pipes = {id: job._write_to for id, job in jobs.items() if job not in unwritten}
        reading = [jobs[id] for id in pipes if pipes[id] and not jobs[id]._accepted]
        for job in reading:
            job._accepted = True  # for the flush alone, in which Celery keeps accepted jobs
            # If a child dies that has a part of a job, Celery discards the job. Then it finds no
            # job of this child, and gives the pipe, with that part in it, to the next child. Celery
            # 5.5 also keeps the writer of the job, and would wait for that for ever.
            if (writer := _get_job_writer(job)) is not None:
                job.discard = writer.close
        accepted_jobs = {id: job for id, job in jobs.items() if job._accepted}
        try:
            flush()
        finally:
            for job in reading:
                job._accepted = job._time_accepted is not None
                vars(job).pop("discard", None)
            _remember(processes, accepted_jobs)
            for id, job in reversed(list(jobs.items())):
                child = pipes.get(id)  # None: no child was given the job, and none will be
                lost = id not in processes._cache or child is None or child.dead
                if lost and job._time_accepted is None and not job.ready():
                    job.discard()
                    requeue(request_of(job._accept_callback))

    pool.flush = flush_the_rest


def _remember(processes: Any, accepted_jobs: dict[Any, Any]) -> None:
    """Put unfinished jobs back into the pool's table of jobs: Celery 5.5 also forgets jobs that
    run, and those whose result has not been read yet."""
    for id, job in accepted_jobs.items():
        if not job.ready() and job._write_to is not None:
            processes._cache.setdefault(id, job)


def loses_timers() -> bool:
    """Return whether Celery, at a lost connection, drops the timers of the worker's loop, and with
    them the time limits of running jobs: the versions before 5.7."""
    return bool(celery.VERSION < (5, 7))


def keep_time_limits(pool: Any) -> None:
    """Set the time limits of running jobs again after a lost connection, each with the seconds that
    are left of it. Before 5.7 Celery drops their timers before it flushes ``pool``: a job that
    hangs would keep its slot until the worker stops.

    Also let no job have its soft time limit twice: the second one would interrupt its cleanup.

    Report: none yet.
    """
    processes, flush = pool._pool, pool.flush
    on_soft_limit = processes.on_soft_timeout
    soft_limit_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # job -> monotonic s

    def note_soft_limit(job: Any) -> None:
        # After a second flush a job may have two sets of timers: Celery 5.6 drops timers only when
        # the loop has run. And while a warm shutdown waits for the jobs, the limits are billiard's,
        # which does not know which of them the loop's timers have reached.
        if job not in soft_limit_at:
            soft_limit_at[job] = monotonic()
            on_soft_limit(job)

    def flush_and_set_limits() -> None:
        flush()
        if pool._pool is None:  # a cold shutdown ends the pool before its consumers
            return
        for job in list(processes._cache.values()):
            if job._time_accepted is None or job.ready():
                continue  # one that begins later gets its time limits then
            now, soft_s, hard_s = monotonic(), job._soft_timeout, job._timeout
            soft_left_s = soft_s and max(job._time_accepted + soft_s - now, OVERDUE_LIMIT_S)
            hard_left_s = hard_s and max(job._time_accepted + hard_s - now, OVERDUE_LIMIT_S)
            if soft_s and hard_s and hard_s > soft_s:
                # The job has the time between both limits to clean up, also if its soft limit came
                # late.
                soft_due = soft_limit_at.get(job, now + soft_left_s)
                hard_left_s = max(soft_due + hard_s - soft_s - now, OVERDUE_LIMIT_S)
            if job in soft_limit_at:  # a second one would interrupt the cleanup
                soft_left_s = None
            processes.on_timeout_set(job, soft_left_s, hard_left_s)

    processes.on_soft_timeout = processes._timeout_handler.on_soft_timeout = note_soft_limit
    if loses_timers():
        pool.flush = flush_and_set_limits


def keep_partial_results(pool: Any) -> None:
    """Continue to read a result of which only a part was read when the connection was lost. Celery
    then makes a new event loop with a new reader, which would take the next piece for the start of
    a result: the worker would end by an unpickling error, or wait for ever.

    Also read the rest when the child has died. Celery would take that, too, for the start of a
    result: a job that has finished would get a strike.

    Report: A large result that was read in part is lost when the event loop is reset.
    """
    processes = pool._pool
    results = processes._result_handler
    begin = results._recv_message
    reading: dict[int, tuple[Any, Any]] = {}

    def is_partial(message: Any) -> bool:
        """Return whether the rest of a message is to be read. While its reader runs, a signal
        handler has interrupted the handling of a message, mostly one that was read whole."""
        return message.gi_frame is not None and not message.gi_running

    def begin_or_go_on(add_reader: Any, fd: int, callback: Any) -> Any:
        child = processes._fileno_to_outq[fd]
        whose, message = reading.get(fd, (None, None))
        # A reader is a generator. Make one if none is under way for this child.
        if whose is not child or not is_partial(message):
            message = begin(add_reader, fd, callback, load=partial(unpickle_or_end, child))
            reading[fd] = child, message
        return message

    flush = processes.process_flush_queues

    def finish_and_flush(child: Any) -> None:
        """Read what a dead child has written."""
        whose, message = reading.get(child.outqR_fd, (None, None))
        if whose is child and is_partial(message):
            try:
                next(message)  # up to the end of the result, or until the pipe is empty
            except StopIteration:
                pass
            except (OSError, EOFError):
                return
            else:  # the child died before it had written the rest
                return
        flush(child)

    results._recv_message = begin_or_go_on
    processes.process_flush_queues = finish_and_flush


def read_without_blocking(pool: Any) -> None:
    """Read results without a call that blocks, also when the worker has ended its loop and waits
    for its jobs. Celery then calls one that blocks: if a child dies while it writes a large result,
    the worker waits for the rest for ever. And before Celery 5.7 it takes the rest of a result that
    the loop had begun to read for the start of another.

    Report: A process that dies while it sends a large result holds up a warm shutdown for ever.
    """
    results = pool._pool._result_handler

    def read_now(
        fd: int, remove: Callable[[int], object], process_index: Any, on_state_change: Any
    ) -> None:
        """Read what a child has sent by now; ``remove`` its pipe if nothing more can come."""
        if fd not in process_index:  # its end was found, and what it had sent was read
            remove(fd)
            return
        try:
            next(results._recv_message(lambda *_: None, fd, on_state_change))
        except StopIteration:  # a whole message was read
            pass
        except (OSError, EOFError):
            remove(fd)
        else:
            wait([fd], RESULT_WAIT_S)

    results._flush_outqueue = read_now


def unpickle_or_end(child: Any, stream: Any) -> Any:
    """Return what a child has sent. If that cannot be unpickled, kill the child and return None: it
    may have been the result of its job, which the worker then recovers, with a strike."""
    try:
        return pickle.load(stream)
    except (Exception, SystemExit) as error:  # raised, it would end the worker
        logger.error(
            "A pool process was killed because it sent a result that cannot be unpickled (pid=%d): "
            "%s. Its job is recovered with a strike. Fix what the task returns or raises.",
            child.pid,
            describe(error),
        )
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        return None


def read_last_messages(pool: Any) -> None:
    """Read the last messages of a dead child before its job is given to another child. If Celery
    finds the death while it replaces other children, it does not read them: a job that the child
    has started, or even finished, would run a second time without a strike.

    Report: A task that has ended runs again if its process dies while another process is
    replaced.
    """
    processes = pool._pool
    give_away = processes.on_job_process_down

    def read_first(job: Any, pid: int) -> None:
        child = job._write_to
        # Not ``_accepted``: during a flush, ``keep_running_jobs`` sets that of jobs whose start has
        # not been read.
        has_started = job._time_accepted is not None
        if not (has_started or child is None or child.dead or child.exitcode is None):
            processes.process_flush_queues(child)
            if job._time_accepted is not None:
                return  # it has started: Celery reports its loss when it finds the child's exit
        give_away(job, pid)

    processes.on_job_process_down = read_first


def forget_closed_descriptors(pool: Any) -> None:
    """Forget the file descriptor of a lost child's results when ``pool`` closes its pipes. Celery
    remembers the number. At the next lost connection it reads from the file that has this number
    by then (a connection to Redis, for example), and the worker hangs or ends.

    Report: Descriptors of a lost process stay registered, and a new connection is read in its
    place.
    """
    processes = pool._pool
    destroy = processes.destroy_queues

    def destroy_and_forget(queues: Any, child: Any) -> Any:
        children = processes._fileno_to_outq
        if children.get(child.outqR_fd) is child:
            del children[child.outqR_fd]
        return destroy(queues, child)

    processes.destroy_queues = destroy_and_forget


def rewatch_children(pool: Any, call_later: Callable[..., object]) -> None:
    """Keep ``pool`` informed of the end of each child.

    If two children die at once, Celery replaces both when it handles the end of the first one. When
    it then handles the end of the second one, a new child may have got the same number as file
    descriptor, and Celery stops watching the new child. At the next lost connection Celery fails to
    find that child, and the worker ends.

    Also check again a child that has closed its pipe and has not exited yet. Celery checks it once,
    often a moment too early, and then only after 5 s.

    Report: If several processes die at once, a successor is not watched, and the next lost
    connection ends the worker.
    """
    processes = pool._pool
    forget = processes._untrack_child_process

    def check_again(child: Any, times: int) -> None:
        if child.exitcode is not None:
            processes.maintain_pool()
        elif times:
            call_later(FORK_RETRY_S, check_again, child, times - 1)

    def forget_the_number(child: Any, hub: Any) -> None:
        # Celery calls this twice for a child, and Celery 5.5 fails without the attribute.
        if "_sentinel_poll" in vars(child):
            forget(child, hub)
            del vars(child)["_sentinel_poll"]  # so that Celery sets a new one
        if child.exitcode is None:
            call_later(FORK_RETRY_S, check_again, child, END_CHECKS_MAX)

    processes._untrack_child_process = forget_the_number


def retry_refused_forks(pool: Any, call_later: Callable[..., object]) -> None:
    """Try again later to replace lost children if the system refuses a fork: a limit of processes,
    or no memory. Celery would take the error for a lost connection, find the child that was never
    started when it flushes the pool, and end the worker by a KeyError: all running jobs would get a
    strike for an error of the host. For lack of memory billiard would end the worker at once.

    If the pool has had no process for a minute, end the worker: it would keep the jobs that it has
    claimed, while other workers are idle. They are requeued without a strike.

    Report: none yet.
    """
    processes = pool._pool
    repopulate = processes._repopulate_pool
    next_try = next_log = -inf  # monotonic s
    empty_since: float | None = None  # monotonic s; None: the pool had a process at the last try

    def try_to_fork(exitcodes: Sequence[int]) -> None:
        nonlocal empty_since
        try:
            repopulate(exitcodes)
        except OSError as exc:
            was_refused = _forget_unforked(processes)
            _close_pipe_of_unforked(exc)
            # Without a file descriptor Celery ends the worker, and no job is blamed.
            if not was_refused or exc.errno == errno.EMFILE:
                raise
            try_later(exc)
        else:  # a later refusal gets a minute of its own
            empty_since = None

    def try_later(refusal: OSError) -> None:
        nonlocal next_try, next_log, empty_since
        now, count = monotonic(), len(processes._pool)
        has_become_empty = not count and empty_since is None
        if count:
            empty_since = None
        elif empty_since is None:
            empty_since = now
        elif now - empty_since >= EMPTY_POOL_MAX_S:
            # A MemoryError: the worker's loop does not catch it, and no job is blamed for it.
            raise MemoryError(
                f"no pool process could be forked for {EMPTY_POOL_MAX_S:.0f} s: {refusal}"
            ) from refusal
        if now >= next_log or has_become_empty:
            next_log = now + REFUSED_FORK_REPEAT_S
            logger.error(
                "This worker cannot fork a pool process: %s. Its pool has %d of %d processes and "
                "runs %s; it tries again each second%s. Free memory, or raise the limit of "
                "processes (pids.max of the cgroup, ulimit -u), or end what uses it up.",
                refusal,
                count,
                processes._processes,
                "fewer jobs at once" if count else "no job",
                "" if count else f" for {EMPTY_POOL_MAX_S:.0f} s, and then ends",
            )
        # Celery itself calls ``maintain_pool``, too. If each of these calls had a next one, there
        # would be more and more of them.
        if now >= next_try:
            next_try = now + REFUSED_FORK_RETRY_S
            call_later(REFUSED_FORK_RETRY_S, processes.maintain_pool)

    processes._repopulate_pool = try_to_fork


def _forget_unforked(processes: Any) -> bool:
    """Remove children that could not be forked from the pool's list, and free their pipes. Return
    whether there were any. billiard puts a child into the list before it forks."""
    unforked = [child for child in processes._pool if child._popen is None]
    for child in unforked:
        processes._pool.remove(child)
        for queues, owner in list(processes._queues.items()):
            if owner is child:
                processes._queues[queues] = None
    return bool(unforked)


def _close_pipe_of_unforked(refusal: OSError) -> None:
    """Close the pipe that billiard has opened for a child that could not be forked, and leaves
    open. At a try each second, the worker would have no file descriptor left within minutes. Its
    two ends are local variables of billiard's ``Popen._launch``, which is in the traceback."""
    frames = (frame for frame, _line in walk_tb(refusal.__traceback__))
    launch = next((frame for frame in frames if frame.f_code.co_name == "_launch"), None)
    names = launch.f_locals if launch is not None else {}
    parent_end, child_end = names.get("parent_r"), names.get("child_w")
    if parent_end is None or child_end is None:
        return  # the error is not that of a fork, or it is that of the pipe
    with suppress(OSError):
        pipe = os.fstat(parent_end)
        if not S_ISFIFO(pipe.st_mode):
            return
        os.close(parent_end)
        # A child that is spawned: billiard has closed this end, and its number may be in use again.
        if os.fstat(child_end).st_ino == pipe.st_ino:
            os.close(child_end)


def postpone_forks(pool: Any, call_later: Callable[..., object]) -> None:
    """Postpone the replacement of lost children, without blocking the loop, until no thread of this
    package is in code of the user or of a library (``model.fork_gate``). Such code may hold a lock,
    which the new child would inherit locked.

    Report: none. Only this package needs it.
    """
    processes = pool._pool
    repopulate = processes._repopulate_pool
    lost: list[int] = []

    def when_free(exitcodes: Sequence[int]) -> None:
        lost.extend(exitcodes)
        if len(processes._pool) < processes._processes and not fork_gate.may_fork():
            call_later(FORK_RETRY_S, processes.maintain_pool)
            return
        try:
            repopulate(tuple(lost))
        finally:
            lost.clear()
            fork_gate.forked()

    processes._repopulate_pool = when_free
