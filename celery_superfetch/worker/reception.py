"""What a worker does with a job at which Celery raises, or that it would discard: in a rolling
deploy the workers of yesterday get the jobs of tomorrow, which owners with other tasks may know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.utils.log import get_logger
from celery.worker import state
from kombu.utils.encoding import safe_repr
from redis.exceptions import DataError, RedisError

from ..app.chords import fail_part
from ..app.poison_pill import limits_of
from ..model.dead_job import DeadJob
from ..model.facts import Facts
from ..model.job import Claimed, Job, eta_of
from ..owner.owner import Owner
from ..store.registry import Registry
from ..transport.deliveries import Delivery, delivery_of
from .stopping import told_to_stop

logger = get_logger(__name__)

MOST = 500  # characters of an error that the dead set keeps

RETURNS = 40  # times that a job goes back, for whatever reason, until nobody is taken to know it

#: Seconds that it waits before it goes back, else it would run in circles: one more each time, up
#: to this. With the returns that is a quarter of an hour.
LONGEST_PAUSE = 30

MOST_WAITING = 1000  # jobs of unknown tasks that wait in memory to go back, about

REMEMBERED = 3.0  # seconds for which it is known who else is there


def check(request: Any) -> None:
    """Raise ValueError for what fails only in the pool, and would leave the job unsettled."""
    (_, kwargs, embed), limits = request._payload, request.time_limits
    for name, value, kinds in (
        ("timelimit", limits, (list, tuple)),
        ("shadow", request.name, str),
        ("retries", request.request_dict.get("retries"), (int, type(None))),
        ("kwargs", kwargs, (dict, Mapping)),
        ("embed", embed, (dict, type(None), Mapping)),
    ):
        if not isinstance(value, kinds):
            raise ValueError(f"{name!r} cannot be {value!r}")
    hash((request.id, *(request.stamped_headers or ())))  # Celery looks whether they are revoked
    hard, soft = limits
    for limit in (hard, soft):
        if limit is not None and not (isinstance(limit, (int, float)) and isfinite(limit)):
            raise ValueError(f"'timelimit' cannot be {limits!r}")


def kills(claimed: Claimed, channel: Any) -> bool:
    """Whether a job is over its limit, which another app did not know, and is dead now."""
    if not (claimed.counters and claimed.counters.strikes):
        return False
    owner = channel.owner
    app, job = owner.runner.worker.app, claimed.job
    owner.kill_spared(job, app, limits_of(app))
    return not owner.holds(job)


def parks(message: Any) -> bool:
    """Whether a job is due so much later that it waits on the server until then, and not here."""
    delivery = delivery_of(message)
    if delivery is None or not (due := _due(message, delivery.owner)):
        return False
    if not delivery.owner.park(delivery.job, due * 1000):
        return False
    delivery.forget()
    return True


def _due(message: Any, owner: Owner) -> float:
    """When a job is due (s since the epoch); 0: at once, since it is revoked, or Celery has
    something to say of it."""
    try:
        # Before protocol 2 the body says it.
        fields = message.headers if "task" in message.headers else message.payload
        if fields.get("id") in state.revoked:
            return 0.0
        return max(eta_of(fields.get("eta")), owner.runner.not_before(fields.get("task"), owner))
    except Exception:  # whatever a body can do to a decoder
        return 0.0


def refuses(message: Any, exc: Exception, ran: bool | None = None, short: bool = False) -> bool:
    """Put a job aside that Celery could not read; False when ``exc`` tells of something else. In
    Celery's loop it would end worker after worker, each of which gives the message back; in a timer
    it would stay in flight as long as the worker lives. Raises what ends a worker that is at fault.
    ``ran``: whether it has begun, if that is known; ``short``: the worker is short of threads."""
    delivery = delivery_of(message)
    if delivery is None or _is_trouble(exc) or told_to_stop(delivery.owner):
        return False
    job, owner = delivery.job, delivery.owner
    runner = delivery.owner.runner
    if exc is runner.failure:
        return False
    if not delivery.is_open:
        logger.error(
            "Celery failed while it discarded job %s, which this worker had settled, given back or "
            "killed before.",
            job.title,
            exc_info=exc,
        )
        return True
    if not delivery.owner.may_start(job) if ran is None else ran:
        return False  # in the consumer's own thread
    for request in [*state.reserved_requests, *state.requests.values()]:
        if request.message is message:
            state.task_ready(request)
    app, why = runner.worker.app, safe_repr(exc)[:MOST]
    if getattr(message, "is_read", False) or isinstance(exc, MemoryError):
        logger.error(
            "This worker cannot begin job %s, and ends. The job goes back to its queue, without a "
            "strike.",
            job.title,
            exc_info=exc,
        )
        # Kept, since a timer or a thread of the pool swallows it; not as it is, since Celery takes
        # a KeyError, too, for a lost connection, and would be back at once.
        runner.failure = RuntimeError(f"this worker failed over job {job.title}: {why}")
        if short:
            delivery.requeue()
        else:  # it may be this job's doing all the same: where it has a worker for itself, it is
            way = partial(owner.recover_or_kill, limits=limits_of(app), stopping=True)
            _settle(delivery, way, f"its worker failed over it: {why}", sender=app)
        raise runner.failure from exc
    logger.error(
        "Celery cannot read the message of job %s. The job goes to the dead set without a run, and "
        "its caller is told; mend whoever sent it.",
        job.title,
        exc_info=exc,
    )
    _settle(delivery, owner.kill, f"cannot be received: {why}", sender=app)
    return True


def _settle(
    delivery: Delivery, way: Callable[..., DeadJob | None], why: str, *, sender: Any
) -> None:
    """Have a job end in a way of ``LostRuns``, if need be later, and its caller told."""
    settle = partial(delivery.end_by, way, why, sender=sender)
    try:
        settle()
    except (RedisError, OSError) as error:
        logger.warning(
            "Job %s stays in flight here until the server answers again (%s).",
            delivery.job.title,
            error,
        )
        delivery.owner.overdue.append(settle)


def _is_trouble(exc: Exception) -> bool:
    """Whether it tells of a server that is away, or refuses, and so says nothing of the job."""
    return isinstance(exc, (OSError, RedisError)) and not isinstance(exc, DataError)


def settle_failures(target: Any, options: dict[str, Any], inline: bool) -> Any:
    """What to run instead of ``target``, so that it fails, as in a process, if Celery's code around
    its body raises. A thread or a greenlet swallows that, and the job stays in flight; the worker's
    own thread ends, but for a result backend that is away: that is a lost connection there."""
    succeed, fail = options.get("callback"), options.get("error_callback")
    id = options.get("correlation_id")
    if succeed is None or fail is None:
        return target, options

    def survived(act: Callable[..., Any], trouble: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return act(*args, **kwargs)
            except Exception as exc:
                if inline and _is_trouble(exc):
                    raise
                logger.exception(trouble, id)
                return ExceptionInfo()

        vars(call)["__wrapped__"] = act
        return call

    run = survived(target, "Celery failed around the body of job %s: it has failed.")
    tell = survived(
        fail,
        "The failure of job %s could not be stored or told: whoever waits for its result waits "
        "on. See whether the result backend answers.",
    )

    def ended(result: Any) -> None:
        (tell if isinstance(result, ExceptionInfo) else succeed)(result)

    return run, {**options, "callback": ended}


class Discards:
    """Goes before what Celery does with jobs of which it keeps nothing: it does not know their
    task, cannot decode them, or calls them invalid."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self._others: list[Facts] = []
        self._looked = -REMEMBERED
        self._waiting: dict[Job, Delivery] = {}
        for name in ("on_unknown_task", "on_invalid_task", "on_decode_error"):
            discard = getattr(worker.consumer, name)
            setattr(worker.consumer, name, partial(self._instead_of, discard))

    def _instead_of(self, discard: Callable[..., None], *args: Any) -> None:
        message, exc = args[-2:]
        delivery = delivery_of(message)
        if delivery is None or delivery.owner.config.unknown_tasks == "discard":
            return self._discard(discard, *args)
        if told_to_stop(delivery.owner):
            return None  # it goes back with the others, when the channel closes
        is_unknown = isinstance(exc, KeyError)  # the others have errors of their own
        here = f"task {exc} is not registered" if is_unknown else f"cannot be read: {exc!r}"[:MOST]
        counters = delivery.claimed.counters
        returns = counters.requeues if counters else 0
        why = "no other live worker of its queue has other tasks"
        if other := self._who_may_know(delivery):
            if returns < RETURNS:
                return self._return(delivery, here, returns, other)
            why = f"it went back to its queue {returns} times"
        owner = delivery.owner
        if not is_unknown:
            _settle(delivery, owner.kill, f"{here}; {why}", sender=self.worker.app)
            return discard(*args)  # which is left to do: log it, and send its signal
        dead = delivery.end_by(owner.bury, f"{here}; {why}")
        if dead is not None:
            logger.error(
                "Job %s is in the dead set as %s: %s. Put it back with `celery superfetch dead "
                "retry` when a worker knows its task.",
                delivery.job.title,
                dead.id,
                dead.reason,
            )
            self._discard(discard, *args)  # which is left to do: tell its caller
        return None

    def _discard(self, discard: Callable[..., None], *args: Any) -> None:
        """As Celery does, and end the chord that waits for a job of an unknown task."""
        discard(*args)
        message, exc = args[-2:]
        if isinstance(exc, KeyError):
            is_v2 = "task" in message.headers
            embed = message.payload[2] if is_v2 else message.payload
            request = Context({**(embed or {}), **(message.headers if is_v2 else {})})
            fail_part(self.worker.app.backend, request, NotRegistered(*exc.args))

    def _return(self, delivery: Delivery, here: str, returns: int, other: Facts) -> None:
        """Give it back in a while; until then it takes no place from others, as one with an ETA."""
        logger.log(
            logging.DEBUG if returns else logging.WARNING,
            "Job %s goes back to its queue: %s. Worker %s has other tasks, and may know it.",
            delivery.job.title,
            here,
            other.node or other.owner,
        )
        delivery.owner.wait(delivery.job)
        self._waiting[delivery.job] = delivery
        if len(self._waiting) > MOST_WAITING:  # Celery 5.5 clears its timer at a lost connection
            self._waiting = {job: held for job, held in self._waiting.items() if held.is_open}
        if len(self._waiting) > MOST_WAITING:
            delivery.channel.qos.awaited.add(delivery.job.claim_id)
        qos = self.worker.consumer.qos
        qos.increment_eventually()

        def give_back() -> None:
            self._waiting.pop(delivery.job, None)
            qos.decrement_eventually()
            delivery.requeue("back")

        pause = min(returns + 1, LONGEST_PAUSE)
        self.worker.consumer.timer.call_after(pause, give_back)

    def _who_may_know(self, delivery: Delivery) -> Facts | None:
        """A live owner with other tasks that takes jobs from the same queue."""
        now, owner = monotonic(), delivery.owner
        if now - self._looked > REMEMBERED:
            well, mine = Registry(owner.database).well(), owner.facts.tasks
            self._others, self._looked = [facts for facts in well if facts.tasks != mine], now
        queue_list = delivery.job.queue_list
        return next((facts for facts in self._others if queue_list in facts.lists), None)
