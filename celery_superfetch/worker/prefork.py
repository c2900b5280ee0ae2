"""Repairs of the prefork pool (``celery.concurrency.asynpool``, which the worker's loop serves):
each function replaces one method of a pool that loses a job, runs one twice, or ends the worker.

The gate applies all of them once, when the pool has started (``mend``). They keep the worker alive;
if it dies all the same, the reaper recovers its jobs. Each repair names the report in
``docs/contribute/reports.md`` that would end it.

Foreign names:

billiard
    know whose job it is: pool:ApplyResult._accept_callback pool:ApplyResult._write_to
    know whether a child has begun with a job: pool:ApplyResult._accepted
        pool:ApplyResult._time_accepted
    take a job back from the pool: pool:ApplyResult.discard()
billiard ._pool.
    know its children and their jobs: _cache.values() _pool.__iter__()
    fork when that harms no one: _processes.__index__() _repopulate_pool(exitcodes) maintain_pool()
    read what a dead child has sent: on_job_process_down(job,pid)
celery concurrency.
    know that a child has died: asynpool:AsynPool.dead
    listen for the end of each child: asynpool:AsynPool._track_child_process~_sentinel_poll
celery .
    keep what runs through a lost connection: flush() _pool.outbound_buffer.__iter__()
    read results on: _pool._result_handler._recv_message(add_reader,fd,callback,load=)
        _pool._fileno_to_outq.__getitem__(fd)
    forget the pipes of a lost child: _pool.destroy_queues(queues,proc)
        _pool._fileno_to_synq.__getitem__(fd)
    listen for the end of each child: _pool._untrack_child_process(proc,hub)
    read what a dead child has sent: _pool.process_flush_queues(proc)
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from ..model import forks
from ..model.foreign import describe
from ..model.log_text import one_line_each

logger = one_line_each(get_logger(__name__))

AGAIN = 0.05  # s between two tries of a pool to fork, and between two checks of a child that ends
LOOKS = 100  # checks of such a child; after them only Celery's own check, each 5 s, finds its end


def request_of(accept_callback: Any) -> Any:
    """Return the request whose method a pool's callback is; None if it is another function."""
    return getattr(accept_callback, "__self__", None)


def drop_unsendable(pool: Any, request: Any, call: Any) -> bool:
    """Remove a job from ``pool`` whose arguments the pool failed to write to a process. The gate
    calls this when a job could not be handed to the pool.

    Returns:
        whether its arguments (``call``) cannot be pickled, so that no process could get them.
    """
    for job in list(pool._pool._cache.values()):
        if request_of(job._accept_callback) is request:
            job.discard()
    try:
        return not pickle.dumps(call)  # never empty: False
    except Exception as exc:  # what was unpickled need not be picklable
        return not isinstance(exc, MemoryError)


def mend(pool: Any, requeue: Callable[[Any], None], call_later: Callable[..., object]) -> None:
    """Apply all repairs to a started pool.

    Arguments:
        requeue: called with the request of a job that the pool drops before its start.
        call_later: of the worker's loop: calls a function after some seconds.
    """
    keep_what_runs(pool, requeue)
    read_on(pool)
    hear_the_dead(pool)
    forget_closed(pool)
    listen_again(pool, call_later)
    postpone_forks(pool, call_later)


def keep_what_runs(pool: Any, requeue: Callable[[Any], None]) -> None:
    """Keep the jobs that children run, or have in their pipes, when Celery flushes ``pool`` at a
    lost connection. Celery forgets all that no child has accepted: such a job would run, but its
    result would be dropped, and it would stay in flight for ever. All other jobs are requeued, the
    newest first, since each goes to the front of its queue.

    Report: A task in the pipe of a pool process is forgotten at a lost connection, and runs.
    """
    flush = pool.flush

    def flush_the_rest() -> None:
        processes = pool._pool
        if processes is None:  # a cold shutdown ends the pool before its consumers
            return
        jobs, unwritten = dict(processes._cache), list(processes.outbound_buffer)
        # Of a dead child, too: the pool may give its pipe, with a job in it, to the next child.
        pipes = {id: job._write_to for id, job in jobs.items() if job not in unwritten}
        reading = [jobs[id] for id in pipes if pipes[id] and not jobs[id]._accepted]
        for job in reading:
            job._accepted = True  # while Celery flushes: it keeps accepted jobs
        kept = {id: job for id, job in jobs.items() if job._accepted}
        try:
            flush()
        finally:
            for job in reading:
                job._accepted = job._time_accepted is not None
            _remember(processes, kept)
            for id, job in reversed(list(jobs.items())):
                child = pipes.get(id)  # if it has died, what was in its pipe is lost as well
                lost = id not in processes._cache or (child is not None and child.dead)
                if lost and job._time_accepted is None and not job.ready():
                    job.discard()
                    requeue(request_of(job._accept_callback))

    pool.flush = flush_the_rest


def _remember(processes: Any, kept: dict[Any, Any]) -> None:
    """Put unfinished jobs back into the pool's books: Celery 5.5 forgets also those that run, and
    those whose result has not been read yet."""
    for id, job in kept.items():
        if not job.ready() and job._write_to is not None:
            processes._cache.setdefault(id, job)


def read_on(pool: Any) -> None:
    """Continue to read a result, of which a part was read when the connection was lost. Celery then
    makes its loop again, with a new reader, which would take the next piece for the start of a
    result: the worker would end by an unpickling error, or wait for ever.

    Report: A large result of which a part was read is lost with the event loop.
    """
    processes = pool._pool
    results = processes._result_handler
    begin = results._recv_message
    reading: dict[int, tuple[Any, Any]] = {}

    def begin_or_go_on(add_reader: Any, fd: int, callback: Any) -> Any:
        child = processes._fileno_to_outq[fd]
        whose, message = reading.get(fd, (None, None))
        if whose is not child or message.gi_frame is None:  # no read is under way
            message = begin(add_reader, fd, callback, load=partial(unpickle_or_end, child))
            reading[fd] = child, message
        return message

    results._recv_message = begin_or_go_on


def unpickle_or_end(child: Any, stream: Any) -> Any:
    """Return what a pool process has sent; None if it cannot be unpickled. Then the process is
    killed, since that may have been the result of its job: the job is recovered with a strike."""
    try:
        return pickle.load(stream)
    except (Exception, SystemExit) as error:  # else it would end the worker
        logger.error(
            "A pool process sent what cannot be unpickled, and is killed (pid=%d): %s. The job "
            "that it ran is recovered with a strike.",
            child.pid,
            describe(error),
        )
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        return None


def hear_the_dead(pool: Any) -> None:
    """Read the last messages of a dead child before its job is given to another child. If Celery
    finds the death while it replaces other children, it does not read them: a job that the child
    has started, or even finished, would run a second time without a strike.

    Report: A task that has ended runs again, if its process dies while another is replaced.
    """
    processes = pool._pool
    give_away = processes.on_job_process_down

    def read_first(job: Any, pid: int) -> None:
        child = job._write_to
        if not (job._accepted or child is None or child.dead or child.exitcode is None):
            processes.process_flush_queues(child)
            if job._accepted:
                return  # it has started: Celery reports its loss when it finds the child's exit
        give_away(job, pid)

    processes.on_job_process_down = read_first


def forget_closed(pool: Any) -> None:
    """Forget the file descriptors of a lost child's pipes when ``pool`` closes them. Celery keeps
    them: at the next lost connection it reads from what has these numbers by then (a connection to
    the server, say), and the worker hangs or ends.

    Report: Descriptors of a lost process stay in the pool's books, and the next connection is
    read in its place.
    """
    processes = pool._pool
    destroy = processes.destroy_queues

    def destroy_and_forget(queues: Any, child: Any) -> Any:
        for children, fd in (
            (processes._fileno_to_outq, child.outqR_fd),
            (processes._fileno_to_synq, child.synqW_fd),
        ):
            if children.get(fd) is child:
                del children[fd]
        return destroy(queues, child)

    processes.destroy_queues = destroy_and_forget


def listen_again(pool: Any, call_later: Callable[..., object]) -> None:
    """Keep ``pool`` informed of the end of each child.

    If two children die at once, Celery replaces both at the event of the first. The event of the
    second has a file descriptor that a new child may have by then, and Celery stops watching that
    child: at the next lost connection it fails to find it, and the worker ends.

    And check again a child that has closed its pipe and is not dead yet: Celery checks once, often
    a moment too early, and the next time 5 s later.

    Report: Processes die at once, and a successor is not watched: the next lost connection ends
    the worker.
    """
    processes = pool._pool
    forget = processes._untrack_child_process

    def look_again(child: Any, times: int) -> None:
        if child.exitcode is not None:
            processes.maintain_pool()
        elif times:
            call_later(AGAIN, look_again, child, times - 1)

    def forget_the_number(child: Any, hub: Any) -> None:
        # Celery calls this twice for a child, and Celery 5.5 fails without the attribute.
        if "_sentinel_poll" in vars(child):
            forget(child, hub)
            del vars(child)["_sentinel_poll"]  # so that Celery sets a new one
        if child.exitcode is None:
            call_later(AGAIN, look_again, child, LOOKS)

    processes._untrack_child_process = forget_the_number


def postpone_forks(pool: Any, call_later: Callable[..., object]) -> None:
    """Postpone the replacement of lost processes, without blocking the loop, until no thread of
    this package is in foreign code, whose locks the new child would inherit locked
    (``model.forks``).

    Report: none. Only this package needs it.
    """
    processes = pool._pool
    repopulate = processes._repopulate_pool
    lost: list[int] = []

    def when_free(exitcodes: Sequence[int]) -> None:
        lost.extend(exitcodes)
        if len(processes._pool) < processes._processes and not forks.may_fork():
            call_later(AGAIN, processes.maintain_pool)
            return
        try:
            repopulate(tuple(lost))
        finally:
            lost.clear()
            forks.forked()

    processes._repopulate_pool = when_free
