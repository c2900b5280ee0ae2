"""The request class: sees the jobs that lose their pool child, which no signal tells of."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import time
from typing import Any

from celery.app.task import Context
from celery.exceptions import Reject, Terminated, TimeLimitExceeded
from celery.utils.log import get_logger
from kombu.utils.imports import symbol_by_name
from redis.exceptions import RedisError

from ..app.announcer import announcements_of
from ..app.poison_pill import limits_of
from ..model.job import CARRIED, EARLIER, Carried
from ..model.strikes import Blame
from ..store.dead_jobs import DeadJob
from ..transport.deliveries import Delivery, delivery_of
from .batches import is_only_named
from .reception import check
from .start import NotStarted
from .stopping import Returnable, told_to_stop

logger = get_logger(__name__)

#: Headers that say something of one delivery, and nothing of the job.
OF_THE_DELIVERY = frozenset({EARLIER, CARRIED, "redelivered"})

#: Seconds that a job must have to wait to be moved aside, which costs as much as to claim it.
WORTH_MOVING = 1.0


class CountedRequest(Returnable):
    """Mixin for a request class: what Celery requeues for a lost child goes past the guard.

    Celery's main process does that by ``reject(requeue=True)`` without a signal, without a
    count and without end: its most common poison loop.
    """

    #: Why the run was cut short, while Celery settles it.
    _cut_short = ""
    #: The job is in the dead set.
    _killed = False
    #: How many jobs ran as one, and were cut short together.
    together = 1

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(message, *args, **kwargs)
        check(self)
        self._wait_aside()
        request = self.request_dict
        if not OF_THE_DELIVERY.isdisjoint(request):
            # Celery takes what it does not know for headers of the user's, and sends those on
            # with the retries of the task, where they would tell of another job.
            custom = Context(request).headers or {}
            request["headers"] = {k: v for k, v in custom.items() if k not in OF_THE_DELIVERY}

    def _wait_aside(self) -> None:
        """Keep a job whose time has not come out of the way of those that run."""
        eta, delivery = self.eta, delivery_of(self.message)
        if eta is None or delivery is None:
            return
        with suppress(OverflowError, ValueError, OSError):  # an ETA that Celery will refuse
            if eta.timestamp() - time() > WORTH_MOVING:
                delivery.starts.set_aside(delivery.job)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        # A task's own Reject is on purpose; anything else that ends in a requeue is a child
        # that was lost (WorkerLostError, or the exit that billiard reports before it).
        exc = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(exc, NotStarted):
            return self.message.channel.fetch.in_flight.runner.take_back(self)
        if isinstance(exc, MemoryError):
            # Celery would raise it here: the worker ends over it, and so does the next. Whoever ran
            # the task is alive, and it has failed.
            exc_info.exception = RuntimeError(repr(exc))
        self._cut_short = (
            ""
            if isinstance(exc, (Reject, Terminated))
            else f"hard time limit ({exc.args[0]} s)"
            if isinstance(exc, TimeLimitExceeded)
            else f"pool child lost ({exc})"
        )
        try:
            return super().on_failure(exc_info, *args, **kwargs)
        except Exception:  # the result backend is away, say; the run is over all the same
            self.reject(requeue=bool(self._cut_short))
            raise
        finally:
            self._cut_short = ""
            if self._already_cancelled and not self.acknowledged:
                # Celery cancelled it and leaves it to the broker to notice. Its child has
                # ended now, and not before, so it cannot run beside itself.
                self._give_back()

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        if not soft and self._killed:
            # The pool says the failure first, the timeout that it was second; Celery would
            # put the timeout over the result that tells of the job's death.
            return None
        self._cut_short = "" if soft else f"hard time limit ({timeout} s)"
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft and not self.acknowledged:
                # Before 5.7 Celery leaves this to the loss of the child, and greenlets have none.
                # Or it could not tell the result backend.
                self.reject(requeue=True)
            self._cut_short = ""

    def acknowledge(self) -> Any:
        if is_only_named(self):
            return None
        delivery = delivery_of(self.message)
        if delivery is None:
            return super().acknowledge()
        poller = delivery.channel.fetch.poller
        if not (self.acknowledged or poller.inline):
            # Celery leaves it to the next turn of its loop. That is too late for the job that gets
            # the slot now, and takes this ack along.
            delivery.ack_first()
        result = super().acknowledge()
        # Before 5.7 Celery lets its loop sleep over what a pool's thread, or greenlet, has given it
        # to do: here the ack itself.
        poller.wake(end_round=True)
        return result

    def reject(self, requeue: bool = False) -> Any:
        if requeue and self._already_cancelled:
            return None  # ``on_failure`` gives it back
        delivery, task = delivery_of(self.message), self.task
        if delivery is None or self.acknowledged or not (requeue and self._cut_short):
            return super().reject(requeue=requeue)
        self.acknowledged = True
        settle = partial(
            self._recover_or_kill, delivery, self._cut_short, told_to_stop(delivery.membership)
        )
        try:
            settle()
        except (RedisError, OSError) as exc:
            logger.warning(
                "Job %s[%s] lost its run (%s) and cannot be given back yet (%s): it is safe in "
                "this worker's private list, and given back when the server answers.",
                task.name,
                self.id,
                self._cut_short,
                exc,
            )
            delivery.membership.overdue.append(settle)
        except Exception:
            logger.exception(
                "Job %s[%s] lost its run (%s) and could not be given back: it stays in this "
                "worker's private list, and is recovered when the worker ends.",
                task.name,
                self.id,
                self._cut_short,
            )
        return None

    def _recover_or_kill(self, delivery: Delivery, reason: str, stopping: bool) -> None:
        """Settle a run that was cut short.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked now.
        """
        app = self.app
        how = {"stopping": stopping, "together": self.together}
        dead = delivery.cut_short(reason, app, limits_of(app), **how)
        if dead is not None:
            self._bury(delivery, dead)

    def _bury(self, delivery: Delivery, dead: DeadJob) -> None:
        """The job is in the dead set: have its caller told."""
        self._killed = True
        announcements_of(self.app, delivery.membership).soon(dead)

    def _retry_worker_lost(self, exc: BaseException, exc_info: Any) -> bool:
        """Celery 5.7 (``task_retry_on_worker_lost``) sends a job whose child was lost anew.

        The new message has other bytes, so no counters: the strikes go with it in a header, and
        at the last one the job is killed instead.

        Returns:
            False: it was not sent, and Celery goes on as without that setting.
        """
        delivery, late = delivery_of(self.message), self.task.acks_late
        if delivery is None:
            return bool(super()._retry_worker_lost(exc, exc_info))
        app = self.app
        context = self._context
        innocent = told_to_stop(delivery.membership) or self._already_cancelled
        spared = innocent or self.together > 1
        if spared and late and self.task.reject_on_worker_lost:
            return False  # it is recovered as it is: no strike of its own, and none of its retries
        try:
            judged = delivery.membership.lost_runs.sent_anew(
                delivery.job,
                self._cut_short,
                app,
                limits_of(app),
                blame=Blame.NONE if innocent else Blame.EXACT,
                settled=not late,
            )
        except (RedisError, OSError) as error:
            # A job that goes back to its queue instead is counted when the server answers.
            logger.warning("Job %s cannot be sent anew now: %s", self, error)
            return False
        if isinstance(judged, Carried):
            own = context.headers
            context.headers = {**(own or {}), **judged.headers()} or None
            try:
                return bool(super()._retry_worker_lost(exc, exc_info))
            finally:
                context.headers = own
        if not late:
            logger.error(
                "Job %s was not sent anew after its last strike (%s). It was acked before it "
                "ran, so it is not in the dead set: it has failed.",
                self,
                self._cut_short,
            )
            return False
        self.acknowledged = True
        delivery.forget()
        if judged is not None:
            self._bury(delivery, judged)
        return True


def use_our_request(worker: Any) -> None:
    """Let ``worker`` serve each task by a counted request class, above the one that it has.

    Whenever it looks at its tasks: at each connection, and when some were loaded at run time.
    """
    consumer, update = worker.consumer, worker.consumer.update_strategies

    def update_strategies() -> None:
        made: dict[Any, Any] = {}
        for task in worker.app.tasks.values():
            base = symbol_by_name(task.Request)
            if issubclass(base, CountedRequest):
                continue
            if base not in made:
                made[base] = type(base.__name__, (CountedRequest, base), {})
            task.Request = made[base]
        update()

    consumer.update_strategies = update_strategies
