"""The start of a job: the process that is going to run it asks whether it still may.

A job waits in a pool's queue or a child's pipe while its worker is frozen, loses its connection
or is taken for dead. By the time it is its turn the job may be somebody else's; only the
server knows, and only the process that runs the job asks late enough.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery import current_app
from celery.exceptions import Ignore
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from .connection import client_of
from .errors import SuperfetchError
from .job import Claimed, digest
from .keys import Keys
from .scripts import Scripts
from .transport import Channel

logger = get_logger(__name__)

#: Seconds a job waits for the server to say that it may start. Longer than a failover takes
#: to be noticed, far shorter than the silence after which an owner is taken for dead.
START_WAIT = 10.0

#: Seconds between two tries while the server cannot be reached.
RETRY_INTERVAL = 0.5


class NotStarted(Ignore):
    """A job was dropped before its first line ran; the text says why."""


class Ticket(NamedTuple):
    """What the process that runs a job needs to know of its claim; it goes with the job."""

    owner: str
    claim_id: str
    digest: str
    #: False for a task with early ack: its job is settled already, or about to be.
    record: bool
    prefix: str


def guard_starts(pool: Any) -> None:
    """Let every job that ``pool`` gets ask before it starts."""
    apply_async = pool.apply_async

    def guarded(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        request = getattr(options.get("accept_callback"), "__self__", None)
        ticket = _hand_over(request)
        if ticket is not None:
            target, args = start, (ticket, target, *args)
        return apply_async(target, args, kwargs or {}, **options)

    pool.apply_async = guarded
    flush = pool.flush
    if flush is not None:
        pool.flush = lambda: _flush(pool, flush)


def _flush(pool: Any, flush: Callable[[], object]) -> None:
    """Let the pool forget what no child has accepted, but for what a child can read already.

    Celery does that when its connection is lost. Such a child is still going to ask, and may
    have been told to start: nobody would wait for its result, and its job would never be acked.
    """
    cache = getattr(getattr(pool, "_pool", None), "_cache", {})  # prefork alone has one
    written = [
        job
        for job in list(cache.values())
        if not job._accepted
        and job._write_to is not None
        and _claimed(getattr(job._accept_callback, "__self__", None))
    ]
    for job in written:
        job._accepted = True
    try:
        flush()
    finally:
        for job in written:
            job._accepted = job._time_accepted is not None


def _claimed(request: Any) -> Claimed | None:
    """The claim that a request stands for; None for what is not fetched reliably."""
    message: Any = getattr(request, "message", None)
    claimed: Claimed | None = getattr(getattr(message, "_raw", None), "claimed", None)
    return claimed if claimed is not None and isinstance(message.channel, Channel) else None


def _hand_over(request: Any) -> Ticket | None:
    """The ticket of a request that stands for a claim; notes that the pool has it."""
    claimed = _claimed(request)
    if claimed is None:
        return None
    job, channel = claimed.job, request.message.channel
    channel.fetch.in_flight.hand_over(job)
    prefix = channel.config.global_keyprefix
    return Ticket(job.owner, job.claim_id, digest(job.payload), request.task.acks_late, prefix)


def start(ticket: Ticket, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run ``target`` unless the job is no longer ours; runs in the pool's own process.

    Returns:
        what ``target`` returns: Celery's triple of failed, value and seconds.
    """
    refused = _starts.ask(ticket)
    if not refused:
        return target(*args, **kwargs)
    try:
        raise NotStarted(refused)
    except NotStarted:
        return 1, ExceptionInfo(internal=True), 0.0


class Starts:
    """Asks the server; one for each process, whatever threads run its jobs.

    Arguments:
        connect: makes a client; called again after an error, and in a forked child.
    """

    def __init__(self, connect: Callable[[], Redis]) -> None:
        self._connect = connect
        self._pid = 0
        self._scripts: Scripts | None = None
        self._lock = threading.Lock()
        #: Starts since the last answer that the server was not told of.
        self._unrecorded = 0

    def ask(self, ticket: Ticket) -> str:
        """Why the job must not start; empty when it may."""
        keys = Keys(ticket.prefix)
        names = [keys.facts(ticket.owner), keys.running(ticket.owner), keys.stats]
        unrecorded = self._unrecorded
        args = [ticket.claim_id, ticket.digest, int(ticket.record), unrecorded]
        deadline = monotonic() + START_WAIT
        while True:
            try:
                answer = self._connected().run("start", names, args).decode()
            except ResponseError as exc:  # out of memory, forbidden: it will not change soon
                return self._go_unrecorded(ticket, exc)
            except (RedisError, OSError, OperationalError, SuperfetchError) as exc:
                self._scripts = None
                if monotonic() >= deadline:
                    return self._go_unrecorded(ticket, exc)
                # Not a busy loop, and nothing to wait for but time.
                threading.Event().wait(RETRY_INTERVAL)
            else:
                self._unrecorded -= unrecorded
                return "" if answer == "ok" else str(answer)

    def _go_unrecorded(self, ticket: Ticket, exc: Exception) -> str:
        self._unrecorded += 1
        logger.warning(
            "Job %s starts although the broker could not be asked whether it is still ours "
            "(%s): if its worker was taken for dead meanwhile, it runs twice.",
            ticket.digest,
            exc,
        )
        return ""

    def _connected(self) -> Scripts:
        with self._lock:
            if self._pid != os.getpid():  # a connection of the parent must not be shared
                self._pid, self._scripts = os.getpid(), None
            if self._scripts is None:
                self._scripts = Scripts(self._connect())
            return self._scripts


def _client() -> Redis:
    return client_of(current_app._get_current_object(), timeout=START_WAIT / 2)


_starts = Starts(_client)
