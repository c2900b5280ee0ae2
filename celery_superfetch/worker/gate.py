"""The start of a job: handed to the pool when a slot is free, it is recorded, and surely ours until
a time that it carries. What comes too late is handed over again."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import ref

from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import RedisError

from ..app.notice import Notices
from ..model.config import ANNOUNCE_TASK
from ..model.foreign import message_of
from ..model.job import digest
from ..model.process import start_time
from ..owner.here import owners_here
from ..owner.in_flight.runner import Runner
from . import unreceivable
from .forked_children import end_forked_child
from .handover import Handover, run_until
from .in_process import settle_failures
from .outcomes import exception_of, run_and_check, run_and_pack
from .pool_slots import PoolSlots
from .prefork import drop_unsendable, mend, request_of
from .run_counts import RunCounts
from .settling import call_back, report
from .stopping import SOLO, THREADS, is_of, told_to_stop

logger = get_logger(__name__)

TOLD = ("callback", "error_callback", "timeout_callback")  # by a pool, of a job's end


def sleep_until(due: float) -> None:
    """gevent's timers count from when its loop looked at the clock last: they may come too early by
    as long as a greenlet has kept the loop since then."""
    while (left := due - time.time()) > 0:
        time.sleep(left)


def _tell_of_lost_batch(target: Any, exc_info: Any) -> None:
    """For a strategy of a task's own that makes one run of many jobs, and does not ask for this."""
    logger.error(
        "A batch that %s ran was lost, or failed: %s. Jobs that it has not acked stay in flight "
        "until this worker ends, and run again then. Restart it.",
        getattr(target, "__qualname__", target),
        message_of(exception_of(exc_info)),
    )


class Gate(Runner):
    """Stands before a worker's pool and runs what its connection brings; any thread comes by."""

    endless = True
    notice: Notices
    _turns = 0
    _look_again = False  # somebody came by while another handed over

    def __init__(self, worker: Any) -> None:
        self.worker, self.pool, self.node = worker, worker.pool, worker.hostname
        self.pid = os.getpid()
        self.notice, self.run_counts = Notices(worker.app), RunCounts()
        self.tasks = digest(" ".join(sorted(worker.app.tasks)).encode())[:12]
        self.green = self.pool.is_green
        self.inline, self.threads = is_of(self.pool, SOLO), is_of(self.pool, THREADS)
        self.prefork = self.pool.uses_semaphore and not self.pool.options.get("threads", True)
        self._waiting: deque[Handover] = deque()
        self.out: set[Handover] = set()
        self._turn = threading.Lock()  # held by whoever hands over
        self._apply, self.pool.apply_async = self.pool.apply_async, self.apply_async
        self._process, worker._process_task = worker._process_task, self._process_task
        if worker.process_task == self._process:  # else it looks for it again at each job
            worker.process_task = worker.consumer.on_task_request = self._process_task
        self.pool_slots: PoolSlots | None = None
        if self.prefork:
            mend(self.pool, self.requeue, worker.hub.call_later)
            self.pool_slots = PoolSlots(self.pool, self.pump)

    @property
    def slots(self) -> int:
        """How many jobs run at once; gevent's own, on Celery 5.5, is of those that do."""
        return int(self.pool.num_processes if self.pool.uses_semaphore else self.pool.limit)

    def pids(self) -> Sequence[tuple[int, str]]:
        processes = getattr(self.pool._pool, "_pool", None)
        pids = [process.pid for process in list(processes or ())]
        return sorted((pid, start_time(pid) or "") for pid in pids if pid is not None)

    def on_turn(self) -> None:
        end_forked_child(self.pid)
        if self.failure is not None:
            raise self.failure
        self._turns += 1

    def on_close(self) -> None:
        self._turns = 0

    def turns(self) -> int:  # 0 while a job in the loop's own thread may keep it
        return 0 if (self.inline or self.green) and state.active_requests else self._turns

    def reserve(self) -> int:  # not those that wait for their time, or a rate limit
        # Celery before 5.7 forgets at a reconnect that what runs on was reserved.
        return max(0, len(state.reserved_requests) - len(state.active_requests))

    def not_before(self, task: str, owner: Any) -> float:
        return self.notice.not_before(owner.database) if task == ANNOUNCE_TASK else 0.0

    def busy(self, unsettled: bool) -> bool:
        return bool(self.out)

    def free(self) -> int:  # slots for which no job that Celery knows waits
        free = self.slots - max(len(state.reserved_requests), len(self.out) + len(self._waiting))
        if self.pool_slots is None:
            return free
        return min(free, self.pool_slots.idle_count - len(self._waiting))

    def _has_slot(self, alone: bool) -> bool:
        """Whether a job would begin at once; ``alone``: a suspect has this worker for itself.

        A pool process is idle a moment before the job that it has ended leaves ``out``: a job that
        started then would not take that one's ack along."""
        if len(self.out) >= (1 if alone else self.slots):
            return False
        return self.pool_slots is None or self.pool_slots.idle_count > 0

    def _process_task(self, request: Any) -> None:  # for the worker's own; timers call it, too
        try:
            if self.green and request.eta:
                sleep_until(request.eta.timestamp())
            self._process(request)
        except Exception as exc:
            if not self._takes_back(request, exc):
                raise

    def apply_async(self, target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """Stands for the pool's own, which gets the job once that may start."""
        end_forked_child(self.pid)
        if not self.pool.uses_semaphore:
            target, options = settle_failures(target, options, self.inline)
        request = request_of(options.get("accept_callback"))
        delivery = getattr(request, "delivery", None)  # only requests of ours have one
        if delivery is None:
            for owner in owners_here() if self.inline else ():
                # What runs now may take long. Acks that cannot be sent are kept, and sent again.
                with suppress(RedisError, OSError):
                    owner.post()
            if self.prefork:
                options.setdefault("error_callback", partial(_tell_of_lost_batch, target))
            return self._apply(target, args, kwargs or {}, **options)
        handover = Handover(delivery, request, target, args, kwargs or {}, options)
        self._waiting.append(handover)
        self.pump()
        handover.waited = True
        # Celery keeps a weak reference to what this returns.
        return (result := request._apply_result) and result()

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
        if self._waiting and self.pool_slots is not None:
            self.pool_slots.report_loading(len(self._waiting))

    def _choose(self) -> tuple[Handover, float] | None:
        """The next job that may start, and until when; None if none may now."""
        while self._waiting:
            first = self._waiting[0]
            alone = first.owner.alone
            room = self._has_slot(alone is not None)
            if not first.is_ours:
                self._drop(self._waiting.popleft(), "it has left this worker")
            elif alone is not None and first.job != alone and not first.request.acknowledged:
                self._drop(self._waiting.popleft(), "another runs alone here")
            elif room and not told_to_stop(first.owner) and (until := first.may_begin()):
                self.out.add(self._waiting.popleft())
                return first, until
            else:
                break
        return None

    def _hand_over(self, handover: Handover, until: float) -> None:
        request, options = handover.request, dict(handover.options)
        counted = handover.job.queue_list, request.type
        forks = not (self.inline or self.threads or self.green)
        succeed = partial(self.run_counts.hear, *counted, options["callback"])
        again = partial(self.take_back, request)
        options["callback"] = partial(report, succeed, options["error_callback"], again)
        for name in TOLD:
            told = partial(call_back, request, self.inline, options[name])
            options[name] = partial(self._tell, handover, told) if forks else told
        if self.threads:
            options["accept_callback"] = partial(handover.accept, options["accept_callback"])
        try:
            # Celery looked before the job waited here. Threads and greenlets are never told of it.
            if handover.waited and request.revoked():
                self.out.discard(handover)
                return self._release()
            args = handover.args if forks else handover.decoded
            checked = run_and_pack if forks else run_and_check
            handed = (run_until, until, handover.claim(), handover.target, *args)
            result = self._apply(checked, handed, handover.kwargs, **options)
        except BaseException as exc:
            # A pool that cannot start a thread has it in its line, and may have begun with it.
            if self.threads and not handover.take():
                self.failure = exc
                return
            handover.owner.end(handover.job)
            self.out.discard(handover)
            if self.prefork:
                call = handover.args, handover.kwargs
                request.message.is_read = not drop_unsendable(self.pool, request, call)
            # This may be a part of another's turn, who must not hear of it.
            short = self.threads and isinstance(exc, RuntimeError)
            if isinstance(exc, Exception) and self._takes_back(request, exc, short):
                return
            raise
        request._apply_result = None if result is None else ref(result)
        if self.inline:
            self._over(handover)
        elif self.threads:
            result.f.add_done_callback(partial(self._over, handover))
        elif self.green:  # gevent's, whose ``link`` would start one more greenlet
            result.rawlink(partial(self._over, handover))

    def _tell(
        self, handover: Handover, tell: Callable[..., object], *args: Any, **kwargs: Any
    ) -> None:
        """One of the pool's callbacks: its last word on a job, but for that of a soft limit."""
        try:
            tell(*args, **kwargs)
        finally:
            if not kwargs.get("soft"):
                self._over(handover)

    def _over(self, handover: Handover, *_: Any) -> None:
        self.out.discard(handover)
        if not self.green:
            self.pump()
        elif self._waiting:  # this is gevent's hub, where nothing may wait
            self.pool.spawn_n(self.pump)

    def _drop(self, handover: Handover, why: str) -> None:
        request = handover.request
        state.task_ready(request)
        handover.delivery.requeue()  # if that is open, and the job still ours
        request.acknowledged = True
        logger.info("Job %s does not start here: %s.", handover.job.title, why)
        self._release()

    def _release(self) -> None:
        """Celery's slot, as it does itself for a job that was revoked; not all pools have such."""
        with suppress(AttributeError):
            self.worker._quick_release()

    def _takes_back(self, request: Any, exc: Exception, short: bool = False) -> bool:
        """Whether a job that the pool did not get is put aside, and its slot free again."""
        if not unreceivable.refuses(request.message, exc, request.time_start is not None, short):
            return False
        if self.prefork:
            # Not here: each of many in a row would be handed over from within the one before.
            self.worker.hub.call_soon(self.worker._quick_release)
        return True

    def requeue(self, request: Any) -> None:
        """The pool has forgotten a job that it had not begun with; it goes back to its queue."""
        for handover in [handover for handover in self.out if handover.request is request]:
            self.out.discard(handover)
            handover.delivery.requeue()

    def take_back(self, request: Any) -> None:
        """The pool came too late to a job: hand it over again, if it is still ours. If its channel
        is closed it goes back: at the next lost connection Celery forgets what waits for a slot."""
        delivery = request.delivery
        job, owner = delivery.job, delivery.owner
        state.task_ready(request)
        if delivery.channel.closed and not request.acknowledged:
            request.acknowledged = True
            return delivery.requeue()
        owner.end(job)
        owner.wait(job)
        with suppress(RedisError, OSError):  # it may be recorded as running for a moment longer
            owner.unrecord(job)
        # The process runs others by now: who ends this job must not end that.
        request.time_start = request.worker_pid = request._apply_result = None
        state.task_reserved(request)  # in Celery's books it is one that waits for a slot
        self.worker.process_task(request)
