"""What a pool of processes may forget when its worker loses the connection, and what not.

Celery lets it forget all that no child has accepted: the broker is going to deliver that again.
With us a running job stays its owner's, so somebody has to wait for its result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any

from ..transport.deliveries import delivery_of


def keep_what_runs(pool: Any, forget: Callable[[Any], None]) -> None:
    """Let ``pool`` remember, when it is flushed, what its children run or are about to.

    Arguments:
        forget: called with the requests of jobs that it had not begun with, and forgets; the
            newest first.
    """
    if not has_loop(pool):  # a pool of threads or greenlets forgets nothing
        return
    _read_on(pool._pool._result_handler)
    flush = pool.flush

    def flush_the_rest() -> None:
        processes = pool._pool
        if processes is None:  # a cold shutdown ends the pool before its consumers
            return
        known, unwritten = dict(processes._cache), list(processes.outbound_buffer)
        # The pool may give a job in the pipe of a dead child to whoever has its number next.
        pipes = {id: job._write_to for id, job in known.items() if job not in unwritten}
        reading = [job for id, job in known.items() if id in pipes and _can_be_read(job)]
        for job in reading:
            job._accepted = True
        kept = {id: job for id, job in known.items() if job._accepted}
        try:
            flush()
        finally:
            for job in reading:
                job._accepted = job._time_accepted is not None
            _remember(processes, kept)
            for id, job in reversed(list(known.items())):
                child = pipes.get(id)  # if it has died, so has all that was in its pipe
                lost = id not in processes._cache or (child is not None and child.dead)
                if lost and job._time_accepted is None and not job.ready():
                    job.discard()
                    forget(request_of(job._accept_callback))

    pool.flush = flush_the_rest


def has_loop(pool: Any) -> bool:
    """Whether ``pool`` is one of processes, and served by the worker's event loop."""
    return bool(pool.uses_semaphore) and not pool.options.get("threads", True)


def _can_be_read(job: Any) -> bool:
    """Whether a child may read this job already, and start it.

    If that has died, the job has to be known all the same: for the pool to see that its pipe is not
    given to the next child, who would find the job in it.
    """
    request = request_of(job._accept_callback)
    delivery = delivery_of(getattr(request, "message", None))
    return not job._accepted and job._write_to is not None and delivery is not None


def request_of(accept_callback: Any) -> Any:
    """Celery's request that a pool tells of a job; None for what else it runs."""
    return getattr(accept_callback, "__self__", None)


def _remember(processes: Any, kept: dict[Any, Any]) -> None:
    """Celery 5.5 forgets running jobs, too.

    Also of a child that has died a moment ago: the pool has yet to see that, and to read the result
    that it may have left.
    """
    for id, job in kept.items():
        if not job.ready() and job._write_to is not None:
            processes._cache.setdefault(id, job)


def _read_on(results: Any) -> None:
    """Let a result that was read in part be read on after the loop was made anew.

    A large one comes in pieces. Celery keeps its reader only in the event loop, which forgets
    it at a lost connection, and takes the next piece for the start of a message: the worker
    ends with an unpickling error, or waits for ever for the gigabytes that were announced.
    """
    begin: Callable[..., Generator[None, None, None]] = results._recv_message
    reading: dict[int, tuple[Any, Generator[None, None, None]]] = {}

    def begin_or_go_on(add_reader: Any, fd: int, callback: Any) -> Generator[None, None, None]:
        child = results.fileno_to_outq[fd]
        whose, message = reading.get(fd, (None, None))
        if (
            message is None
            or whose is not child
            or inspect.getgeneratorstate(message) == "GEN_CLOSED"
        ):
            message = begin(add_reader, fd, callback)
            reading[fd] = child, message
        return message

    results._recv_message = begin_or_go_on
