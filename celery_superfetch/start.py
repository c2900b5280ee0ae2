"""The start of a job: the process that is going to run it asks whether it still may.

A job waits in a pool's queue or a child's pipe while its worker is frozen, loses its connection
or is taken for dead. By the time it is its turn the job may be somebody else's; only the
server knows, and only the process that runs the job asks late enough.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
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
from .in_flight import InFlight
from .job import digest
from .keys import Keys
from .memberships import memberships
from .pool_deaths import hear_the_dead
from .pool_flush import keep_what_runs
from .pool_slots import ack_first
from .qos import claim_of
from .scripts import Call, Scripts
from .stopping import is_solo

logger = get_logger(__name__)

#: Seconds a job waits for the server to say that it may start. Longer than a failover takes
#: to be noticed, far shorter than the silence after which an owner is taken for dead.
START_WAIT = 10.0

#: Answers that leave a job ours to give back: it must not run beside one on probation, or is
#: itself on probation and something else runs.
STILL_OURS = frozenset({"not alone", "beside probation"})

#: Seconds to wait for a connection, or for a reply, before the next try.
REPLY_WAIT = START_WAIT / 2

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
    #: Until when it need not ask (monotonic s).
    may_start_until: float = 0.0


def guard_starts(pool: Any) -> None:
    """Let every job that ``pool`` gets ask before it starts."""
    apply_async, here = pool.apply_async, is_solo(pool)

    def guarded(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        request = getattr(options.get("accept_callback"), "__self__", None)
        ticket = _hand_over(request)
        if request is not None and ticket is not None:
            way = request.message.channel.fetch.in_flight if here else None
            target, args = start, (ticket, way, target, *args)
        elif here:
            _send_acks()  # what runs now may take long, and asks nothing
        return apply_async(target, args, kwargs or {}, **options)

    pool.apply_async = guarded
    keep_what_runs(pool)
    hear_the_dead(pool)
    ack_first(pool)


def _hand_over(request: Any) -> Ticket | None:
    """The ticket of a request that stands for a claim; notes that the pool has it."""
    claimed = claim_of(request)
    if claimed is None:
        return None
    job, channel = claimed.job, request.message.channel
    prefix, late = channel.config.global_keyprefix, request.task.acks_late
    name = digest(job.payload)
    until = channel.fetch.in_flight.hand_over(job, name if late else "")
    if until:
        request.message._raw.start()  # it is not given back any more, whatever its consumer does
    return Ticket(job.owner, job.claim_id, name, late, prefix, until)


def _send_acks() -> None:
    for membership in memberships():
        with suppress(RedisError, OSError):  # they are kept, and sent again
            membership.in_flight.post()


def start(
    ticket: Ticket, way: InFlight | None, target: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run ``target`` unless the job is no longer ours; runs in the pool's own process.

    Arguments:
        way: where the consumer's own thread runs it, whose acks the question takes along.

    Returns:
        what ``target`` returns: Celery's triple of failed, value and seconds.
    """
    if _given_back_here(ticket):
        refused = "called off"
    elif monotonic() < ticket.may_start_until:
        refused = ""
        if way is not None and way.oldest_ack is not None:
            _send_acks()
    else:
        refused = _starts.ask(ticket, way)
    if not refused:
        return target(*args, **kwargs)
    try:
        raise NotStarted(refused)
    except NotStarted:
        return 1, ExceptionInfo(internal=True), 0.0


def _given_back_here(ticket: Ticket) -> bool:
    """Whether this process, which is the owner itself, has given the job back.

    A thread may come to it hours after that, when the server's mark of it is gone.
    """
    if not ticket.record or f"|{os.getpid()}|" not in ticket.owner:
        return False
    claim = (ticket.owner, ticket.claim_id)
    return not any(claim in membership.in_flight.in_pool for membership in memberships())


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

    def ask(self, ticket: Ticket, way: InFlight | None = None) -> str:
        """Why the job must not start; empty when it may.

        Arguments:
            way: to be asked by first.
        """
        keys = Keys(ticket.prefix)
        names = [keys.facts(ticket.owner), keys.running(ticket.owner), keys.stats]
        unrecorded = self._unrecorded
        args = [ticket.claim_id, ticket.digest, int(ticket.record), unrecorded]
        waited = 0.0
        while True:
            began = monotonic()
            try:
                question = Call("start", names, args)
                answer = (self._connected() if way is None else way).ask(question).decode()
            except ResponseError as exc:  # out of memory, forbidden: it will not change soon
                if way is None:
                    return self._go_unrecorded(ticket, exc)
                way = None  # that may have been said of the acks
            except (RedisError, OSError, OperationalError, SuperfetchError) as exc:
                self._scripts = way = None
                # One try counts for a reply's time at most: a process that was frozen during it
                # has waited for nobody yet, and is the very one that must ask.
                waited += min(monotonic() - began, REPLY_WAIT) + RETRY_INTERVAL
                if waited >= START_WAIT:
                    return self._go_unrecorded(ticket, exc)
                # Not a busy loop, and nothing to wait for but time.
                threading.Event().wait(RETRY_INTERVAL)
            else:
                self._unrecorded -= unrecorded
                args[-1] = unrecorded = 0
                # Nobody who is awake waits that long for one: it came before this process was
                # frozen, and the job may have gone elsewhere since.
                if monotonic() - began <= START_WAIT:
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
    return client_of(current_app._get_current_object(), timeout=REPLY_WAIT)


_starts = Starts(_client)
