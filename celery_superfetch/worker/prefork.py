"""A pool of processes that the worker's loop serves: what of billiard's we have done otherwise."""

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

logger = get_logger(__name__)

AGAIN = 0.05  # seconds between two tries of a pool to fork, and two looks at a child that ends
LOOKS = 100  # then it is Celery's turn, which looks each 5 s


def request_of(accept_callback: Any) -> Any:
    return getattr(accept_callback, "__self__", None)


def drop_unsendable(pool: Any, request: Any, call: Any) -> bool:
    """Have ``pool`` drop a job that it was not given whole; whether no process could be."""
    for job in list(pool._pool._cache.values()):
        if request_of(job._accept_callback) is request:
            job.discard()
    try:
        return not pickle.dumps(call)
    except Exception as exc:  # what was unpickled need not be picklable
        return not isinstance(exc, MemoryError)


def mend(pool: Any, requeue: Callable[[Any], None], call_later: Callable[..., object]) -> None:
    keep_what_runs(pool, requeue)
    read_on(pool)
    hear_the_dead(pool)
    forget_closed(pool)
    listen_again(pool, call_later)
    postpone_forks(pool, call_later)


def keep_what_runs(pool: Any, requeue: Callable[[Any], None]) -> None:
    """Let ``pool`` remember, when it is flushed for a lost connection, what its children run or are
    about to: that stays its owner's, so somebody has to wait for its result, but Celery has it
    forget all that no child has accepted. The rest is given back, the newest first."""
    flush = pool.flush

    def flush_the_rest() -> None:
        processes = pool._pool
        if processes is None:  # a cold shutdown ends the pool before its consumers
            return
        jobs, unwritten = dict(processes._cache), list(processes.outbound_buffer)
        # That of a dead child, too: the pool may give what is in it to whoever has its number next.
        pipes = {id: job._write_to for id, job in jobs.items() if job not in unwritten}
        reading = [jobs[id] for id in pipes if pipes[id] and not jobs[id]._accepted]
        for job in reading:
            job._accepted = True
        kept = {id: job for id, job in jobs.items() if job._accepted}
        try:
            flush()
        finally:
            for job in reading:
                job._accepted = job._time_accepted is not None
            _remember(processes, kept)
            for id, job in reversed(list(jobs.items())):
                child = pipes.get(id)  # if it has died, so has all that was in its pipe
                lost = id not in processes._cache or (child is not None and child.dead)
                if lost and job._time_accepted is None and not job.ready():
                    job.discard()
                    requeue(request_of(job._accept_callback))

    pool.flush = flush_the_rest


def _remember(processes: Any, kept: dict[Any, Any]) -> None:
    """Celery 5.5 forgets running jobs, too; also of a child whose result is yet to be read."""
    for id, job in kept.items():
        if not job.ready() and job._write_to is not None:
            processes._cache.setdefault(id, job)


def read_on(pool: Any) -> None:
    """Let a result that was read in part be read on after the loop was made anew: at a lost
    connection it forgets Celery's reader, and takes the next piece for a start. The worker ends
    with an unpickling error, or waits for ever."""
    results = pool._pool._result_handler
    begin = results._recv_message
    reading: dict[int, tuple[Any, Any]] = {}

    def begin_or_go_on(add_reader: Any, fd: int, callback: Any) -> Any:
        child = results.fileno_to_outq[fd]
        whose, message = reading.get(fd, (None, None))
        if whose is not child or message.gi_frame is None:  # there is none, or it was read
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
    """Let ``pool`` read what a dead child has said before its job is given to another. Where Celery
    meets the death while it looks at the others it does not: what that child has begun, or even
    done, would run once more without a strike."""
    processes = pool._pool
    give_away = processes.on_job_process_down

    def read_first(job: Any, pid: int) -> None:
        child = job._write_to
        if not (job._accepted or child is None or child.dead or child._is_alive()):
            processes.process_flush_queues(child)
            if job._accepted:
                return  # the loss of the child is found with its exit
        give_away(job, pid)

    processes.on_job_process_down = read_first


def forget_closed(pool: Any) -> None:
    """Let ``pool`` forget the pipes of a lost child that it closes. Celery goes on to take them for
    a child's: at the next lost connection it reads from whatever has their numbers by then, a
    connection to the server, say, and the worker hangs or ends."""
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
    """Let ``pool`` listen for the end of each child. Of two that die at once it replaces both at
    the event of the first; that of the second has a number that a new child may have by then, who
    is heard no more: at the next lost connection Celery asks for it, and the worker ends.

    And let it look again at one that has closed its end and is not dead yet: Celery looks once, a
    moment too early as often as not, and 5 s later."""
    processes = pool._pool
    forget = processes._untrack_child_process

    def look_again(child: Any, times: int) -> None:
        if child.exitcode is not None:
            processes.maintain_pool()
        elif times:
            call_later(AGAIN, look_again, child, times - 1)

    def forget_the_number(child: Any, hub: Any) -> None:
        if "_sentinel_poll" in vars(child):  # it comes by twice, and Celery 5.5 would miss it then
            forget(child, hub)
            del vars(child)["_sentinel_poll"]  # so that it gets one anew
        if child.exitcode is None:
            call_later(AGAIN, look_again, child, LOOKS)

    processes._untrack_child_process = forget_the_number


def postpone_forks(pool: Any, call_later: Callable[..., object]) -> None:
    """Let ``pool`` replace its lost processes when a fork harms nobody, without a wait."""
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
