"""The start of a job: the MainProcess hands it to the pool, when three things hold.

A slot is free for it; it is recorded as running; and the server has heard of its owner lately
(``certificate``), so that nobody else can have it. What is handed over carries the time until which
that is sure. The process that runs the job looks at its clock, and asks nobody. Past that time the
job does not start: the MainProcess takes it back, and hands it over again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery.exceptions import Ignore
from celery.utils.log import get_logger
from redis.exceptions import RedisError

from ..model.job import digest
from ..owner.membership import memberships
from ..transport.deliveries import Delivery, delivery_of
from .batches import told_of_losses
from .pool import (
    PoolRunner,
    enter_again,
    has_loop,
    note_greenlets,
    over,
    reserved,
    tell_end,
)
from .prefork import (
    hear_the_dead,
    keep_what_runs,
    postpone_forks,
    read_on,
    request_of,
)
from .private_names import check_started
from .stopping import Returnable, told_to_stop

logger = get_logger(__name__)


class NotStarted(Ignore):
    """A job came too late to its process: it is handed over again."""


def start(until: float, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run ``target`` if that may begin yet; runs in the pool's own process.

    Arguments:
        until: monotonic s of this host.

    Returns:
        what ``target`` returns: Celery's triple of failed, value and seconds.
    """
    if monotonic() < until:
        return target(*args, **kwargs)
    try:
        raise NotStarted("too late")
    except NotStarted:
        return 1, ExceptionInfo(internal=True), 0.0


class _Handover:
    """One job on its way to the pool, and what Celery wants to be done with it."""

    def __init__(
        self, request: Any, delivery: Delivery, target: Any, args: Any, kwargs: Any, options: Any
    ) -> None:
        self.request, self.delivery, self.job = request, delivery, delivery.job
        #: It could not start at once.
        self.waited = False
        self.target, self.args, self.kwargs, self.options = target, args, kwargs, options
        self.in_flight, self.starts = delivery.in_flight, delivery.starts

    @property
    def is_ours(self) -> bool:
        """Whether the job is still to be started here.

        One with early ack that was taken back is settled, and nobody else's either.
        """
        if self.starts.certificate.is_past(self.job.owner):
            return False
        return bool(self.request.acknowledged or self.starts.may_start(self.job))

    def may_begin(self) -> float:
        """Record it and note that the pool has it; until when it may begin, 0 for not now."""
        if self.request.acknowledged:
            return self.starts.certificate.until(self.job.owner)
        # One with early ack may be settled before it runs: nothing would take its record away.
        late = self.request.task.acks_late
        return self.starts.start(self.job, digest(self.job.payload) if late else "")


class Gate(PoolRunner):
    """What stands before a worker's pool. Any thread may come by; the pool's own do."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._waiting: deque[_Handover] = deque()
        self._out: set[_Handover] = set()
        #: Held by whoever hands over.
        self._turn = threading.Lock()
        #: Somebody came by meanwhile.
        self._look_again = False
        self._pump_is_due = False
        self._apply = self.pool.apply_async
        self.pool.apply_async = self.apply_async
        note_greenlets(self.pool)
        if has_loop(self.pool):
            check_started(self.pool)
            keep_what_runs(self.pool, self.forget)
            read_on(self.pool)
            hear_the_dead(self.pool)
            postpone_forks(self.pool, worker.hub.call_later)

    # -- what the fetch asks

    def busy(self, unsettled: bool) -> bool:
        """Whether the pool has a job."""
        return bool(self._out)

    def free(self) -> int:
        """How many slots are free, of those for which no job that Celery knows waits."""
        return self.slots - max(reserved(), len(self._out) + len(self._waiting))

    # -- handing over

    def apply_async(self, target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """Stands for the pool's own: it gets the job once that may start."""
        request = request_of(options.get("accept_callback"))
        delivery = delivery_of(request.message) if isinstance(request, Returnable) else None
        if delivery is None:
            if self.inline:
                _send_acks()  # what runs now may take long
            return self._apply(target, args, kwargs or {}, **told_of_losses(target, options))
        what = _Handover(request, delivery, target, args, kwargs or {}, options)
        self._waiting.append(what)
        self.pump()
        what.waited = True
        # Celery keeps a weak reference to what this returns.
        result = request._apply_result
        return None if result is None else result()

    def pump(self) -> None:
        """Hand over what may start now; while somebody does, he sees to what comes meanwhile."""
        self._look_again = True
        while self._look_again and self._waiting and self._turn.acquire(blocking=False):
            self._look_again = False
            try:
                while (chosen := self._choose()) is not None:
                    self._hand_over(*chosen)
            finally:
                self._turn.release()

    def _choose(self) -> tuple[_Handover, float] | None:
        """The next job that may start, and until when; None if none may now."""
        while self._waiting:
            first = self._waiting[0]
            alone = first.in_flight.jobs.alone
            if not first.is_ours:
                self._drop(self._waiting.popleft(), "it is not ours any more")
            elif alone is not None and first.job != alone and not first.request.acknowledged:
                self._drop(self._waiting.popleft(), "another is on probation here")
            elif (
                len(self._out) < (1 if alone is not None else self.slots)
                and not told_to_stop(first.delivery.membership)
                and (until := first.may_begin())
            ):
                self._out.add(self._waiting.popleft())
                return first, until
            else:
                break
        return None

    def _hand_over(self, what: _Handover, until: float) -> None:
        request, options = what.request, what.options
        if not (self.inline or self.threads or self.green):
            options = {**options, **self._telling(what)}
        try:
            # Celery looked before the job waited here. Threads and greenlets are never told to end
            # one that they have not begun, and it would be in flight as long as the worker lives.
            if what.waited and request.revoked():
                self._out.discard(what)
                return self._release()
            result = self._apply(start, (until, what.target, *what.args), what.kwargs, **options)
        except BaseException as exc:
            what.starts.end(what.job)
            self._out.discard(what)
            # It may be another's turn that this is a part of, who must not hear of it.
            if isinstance(exc, Exception) and self.worker.reception.takes_back(request, exc):
                return
            raise
        request._apply_result = None if result is None else ref(result)
        if self.inline:
            self._over(what)
        elif self.threads:
            result.f.add_done_callback(lambda _: self._over(what))
        elif self.green:
            tell_end(self.pool, result, partial(self._ended, what))

    def _telling(self, what: _Handover) -> dict[str, Callable[..., Any]]:
        """The callbacks of a job, after the last of which it is over."""
        callbacks = {
            name: partial(self._tell, what, what.options[name])
            for name in ("callback", "error_callback")
        }
        return {**callbacks, "timeout_callback": partial(self._tell_timeout, what)}

    def _tell(self, what: _Handover, tell: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return tell(*args, **kwargs)
        finally:
            self._over(what)

    def _tell_timeout(self, what: _Handover, soft: bool, timeout: float) -> Any:
        tell = what.options["timeout_callback"]
        return tell(soft, timeout) if soft else self._tell(what, tell, soft, timeout)

    def _over(self, what: _Handover) -> None:
        """The pool has done with it."""
        self._out.discard(what)
        self.pump()

    def _ended(self, what: _Handover, _: Any) -> None:
        """A greenlet has; this runs in gevent's hub, where nothing may wait."""
        self._out.discard(what)
        if self._waiting and not self._pump_is_due:
            self._pump_is_due = True
            self.pool.spawn_n(self._pump_due)

    def _pump_due(self) -> None:
        self._pump_is_due = False
        self.pump()

    def _drop(self, what: _Handover, why: str) -> None:
        """It does not start here: it went back to its queue, or is somebody else's."""
        request = what.request
        over(request)
        if what.is_ours and not request.acknowledged:
            what.delivery.requeue()
        else:
            what.delivery.forget()
        request.acknowledged = True
        logger.info("Job %s[%s] does not start here: %s.", request.name, request.id, why)
        self._release()

    def _release(self) -> None:
        """Celery's slot, as it does itself for a job that was revoked; not all pools have such."""
        with suppress(AttributeError):
            self.worker._quick_release()

    # -- what comes back

    def forget(self, request: Any) -> None:
        """The pool has forgotten a job that it had not begun with; it goes back to its queue."""
        for what in [what for what in self._out if what.request is request]:
            self._out.discard(what)
            what.starts.end(what.job)
            what.in_flight.requeue([what.job])

    def take_back(self, request: Any) -> None:
        """The pool came too late to a job: hand it over again, if it is still ours."""
        delivery = delivery_of(request.message)
        assert delivery is not None
        job, starts = delivery.job, delivery.starts
        starts.end(job)
        starts.wait(job)
        with suppress(RedisError, OSError):  # it may be recorded as running for a moment longer
            starts.unrecord(job)
        # The process runs others by now: who ends this job must not end that.
        request.time_start = request.worker_pid = request._apply_result = None
        enter_again(request)
        self.worker.process_task(request)


def _send_acks() -> None:
    for membership in memberships():
        with suppress(RedisError, OSError):  # they are kept, and sent again
            membership.in_flight.post()
