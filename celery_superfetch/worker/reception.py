"""Between the transport and the pool: what a worker does with a job that Celery cannot digest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import isfinite
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.utils.log import get_logger
from kombu.utils.encoding import safe_repr
from redis.exceptions import DataError, RedisError

from ..app.announcer import announcements_of
from ..app.poison_pill import limits_of
from ..model.job import Claimed
from ..transport.deliveries import delivery_of
from .pool import has_loop, is_solo, over, requests_of
from .prefork import discard
from .stopping import told_to_stop

logger = get_logger(__name__)

#: Characters of an error that the dead set keeps.
MOST = 500


def check(request: Any) -> None:
    """Look at what fails only in the pool, where it would leave the job in flight, or unsettled.

    Raises:
        ValueError: the message is none that a task could be run for.
    """
    (_, kwargs, embed), limits = request._payload, request.time_limits
    fields = (
        ("timelimit", limits, (list, tuple)),
        ("shadow", request.name, str),
        ("retries", request.request_dict.get("retries"), (int, type(None))),
        ("kwargs", kwargs, (dict, Mapping)),
        ("embed", embed, (dict, type(None), Mapping)),
    )
    for name, value, kinds in fields:
        if not isinstance(value, kinds):
            raise ValueError(f"{name!r} cannot be {value!r}")
    if not all(map(_is_limit, limits)):
        raise ValueError(f"'timelimit' cannot be {limits!r}")


def _is_limit(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and isfinite(value))


class Reception:
    """Keeps one worker alive, whatever message comes.

    Celery's own code raises at some. In its loop that ends the worker, which gives the message back
    in good order: so does the next worker, through the whole fleet, and nobody counts. In a timer
    it leaves the job in flight as long as the worker lives.
    """

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def guard_hand_over(self) -> None:
        """Catch what the hand-over to the pool raises; a timer has it done, too, or a free slot."""
        worker, hand_over = self.worker, self.worker._process_task

        def guarded(request: Any) -> None:
            try:
                hand_over(request)
            except Exception as exc:
                if not self.takes_back(request, exc):
                    raise

        if worker.process_task == hand_over:  # else it looks for it again at each job
            worker.process_task = worker.consumer.on_task_request = guarded
        worker._process_task = guarded
        if not worker.pool.uses_semaphore:
            _settle_failures(worker.pool)

    def kills(self, claimed: Claimed, channel: Any) -> bool:
        """Whether a job has come back over its limit, and is dead now.

        Whoever took it back was of another app, and knew neither its task nor its limit.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked.
        """
        if not (claimed.earlier and claimed.earlier.strikes):
            return False
        app, job, membership = self.worker.app, claimed.job, channel.membership
        dead = membership.lost_runs.kill_spared(job, app, limits_of(app))
        if dead is not None:
            announcements_of(app, membership).soon(dead)
        return not membership.in_flight.holds(job)

    def refuses(self, message: Any, exc: Exception, ran: bool | None = None) -> bool:
        """Put a job aside at which Celery raised: it has not run, so nobody else is to blame.

        Arguments:
            ran: whether it has begun; None: that is not known.

        Returns:
            False when the error is not the job's, and is to be raised.
        """
        delivery = delivery_of(message)
        if delivery is None or _is_trouble(exc) or told_to_stop(delivery.membership):
            return False
        job = delivery.job
        if not delivery.is_open:
            logger.error("Celery discarded job %s, and failed over it.", job.title, exc_info=exc)
            return True
        if not delivery.starts.may_start(job) if ran is None else ran:
            return False  # in the consumer's own thread
        logger.error("Celery failed over job %s before it ran.", job.title, exc_info=exc)
        for request in requests_of(message):
            over(request)
        reason = f"cannot be received: {safe_repr(exc)[:MOST]}"
        put_aside = partial(delivery.quarantine, reason)
        try:
            put_aside()
        except (RedisError, OSError) as error:
            logger.warning("It stays in flight until the server answers again (%s).", error)
            delivery.membership.overdue.append(put_aside)
        return True

    def takes_back(self, request: Any, exc: Exception) -> bool:
        """Whether a job that the pool did not get is put aside, and its slot free again."""
        if not self.refuses(request.message, exc, ran=request.time_start is not None):
            return False
        if has_loop(self.worker.pool):
            discard(self.worker.pool, request)
            # Not here: many such jobs in a row would each be handed over from within the other.
            self.worker.hub.call_soon(self.worker._quick_release)
        return True


def _is_trouble(exc: Exception) -> bool:
    """Whether an error tells of a server that is away, or refuses: it says nothing of the job."""
    return isinstance(exc, (OSError, RedisError)) and not isinstance(exc, DataError)


def _settle_failures(pool: Any) -> None:
    """Let what ``pool`` runs fail, as in a process, if Celery's code around its body raises.

    In a thread or a greenlet that is swallowed, and the job in flight as long as the worker lives;
    in the consumer's own thread it ends the worker. The fields of a message can do it: a result's
    key cannot be made of its id, there are no callbacks in a number. And a result backend that is
    away; in the consumer's own thread that is an error of its connection, after which it goes on.
    """
    apply_async, inline = pool.apply_async, is_solo(pool)

    def guarded(target: Any, *args: Any, **options: Any) -> Any:
        succeed, fail = options.get("callback"), options.get("error_callback")
        id = options.get("correlation_id")
        if succeed is None or fail is None:
            return apply_async(target, *args, **options)

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return target(*args, **kwargs)
            except Exception as exc:
                if inline and _is_trouble(exc):
                    raise
                logger.exception("Celery failed around the body of job %s: it has failed.", id)
                return ExceptionInfo()

        def ended(result: Any) -> None:
            if not isinstance(result, ExceptionInfo):
                return succeed(result)
            try:
                fail(result)
            except Exception as exc:
                if inline and _is_trouble(exc):
                    raise
                logger.exception("The failure of job %s could not be told.", id)

        return apply_async(run, *args, **{**options, "callback": ended})

    pool.apply_async = guarded
