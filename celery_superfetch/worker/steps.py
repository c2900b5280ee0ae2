"""What a Celery worker adds: its bootsteps, and what it tells the transport of its pool."""

from __future__ import annotations

import time
from heapq import heapify
from typing import Any

from celery import bootsteps, signals
from celery.utils.log import get_logger
from celery.worker.request import Request
from kombu.utils import functional
from redis.exceptions import RedisError

from ..app.announcer import stop_announcing
from ..app.broker import client_of, config_of
from ..app.events import monitors_of, reporter
from ..app.poison_pill import limits_of
from ..errors import SuperfetchError
from ..model.version import __version__
from ..owner.gevent_heart import threads_are_greenlets
from ..owner.membership import Membership
from ..signals import ownership_lost
from ..store.wire.server import check_platform, check_server
from ..transport.transport import Transport
from .maintenance import MaintenanceThread, Rounds
from .private_names import check_worker
from .reception import Reception
from .request import use_our_request
from .start import Gate
from .stopping import Stopper, wrap_handlers

logger = get_logger(__name__)

#: Seconds that the end of a worker waits for the pass under way.
JOINED_FOR = 5.0


class Maintenance(bootsteps.StartStopStep):
    """Worker step: refuses what cannot work, and keeps the maintenance thread."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.thread: MaintenanceThread | None = None
        self.stopper = Stopper(worker)
        worker.reception = Reception(worker)
        self.report_losses = reporter(worker.app, "lost")
        try:
            check_platform()
            check_worker(worker.pool_cls)
            config_of(worker.app)
        except SuperfetchError as exc:
            raise SystemExit(f"celery_superfetch: {exc}") from exc

    def start(self, worker: Any) -> None:
        _let_pauses_yield()
        _check_broker(worker.app)
        use_our_request(worker)
        limits = limits_of(worker.app)
        for task in worker.app.tasks:
            limits.strikes(task)  # what makes no sense is said now, and not at a job's death
        worker.superfetch_gate = Gate(worker)
        worker.reception.guard_hand_over()
        monitors_of(worker.app).worker = worker
        ownership_lost.connect(self.report_losses)
        self.thread = MaintenanceThread(worker.app)
        self.thread.start()
        self.stopper.start()
        wrap_handlers(self.stopper)
        signals.worker_shutting_down.connect(self.on_shutting_down, sender=worker.hostname)

    def on_shutting_down(self, **_: Any) -> None:
        """Runs in the signal handler; the first SIGINT puts Celery's of the next in place."""
        self.stopper.say_so()
        wrap_handlers(self.stopper)

    def terminate(self, worker: Any) -> None:
        """No thread outlives a worker that was embedded; there is no time to wait for them."""
        self.stopper.stop()
        signals.worker_shutting_down.disconnect(self.on_shutting_down, sender=worker.hostname)
        ownership_lost.disconnect(self.report_losses)
        if self.thread is not None:
            self.thread.stop()

    def close(self, worker: Any) -> None:
        """The first thing of a shutdown, whatever asked for it, while the pool knows its jobs."""
        self.stopper.say_so()

    def stop(self, worker: Any) -> None:
        """The consumer has stopped and the pool has not: it waits for its jobs after this."""
        self.terminate(worker)
        self.stopper.give_back()
        if self.thread is not None:
            self.thread.join(JOINED_FOR)
        stop_announcing()
        monitors_of(worker.app).drain()


def _let_pauses_yield() -> None:
    """Let kombu's pauses between two tries to connect yield to other greenlets.

    Celery's start imports kombu in the midst of gevent's patching, which misses its ``sleep``:
    each pause would stop the jobs of the worker, and its heart, for up to half a minute.
    """
    if threads_are_greenlets():
        functional.sleep = time.sleep


def _check_broker(app: Any) -> None:
    """Refuse a broker that cannot carry the guarantee, before the consumer's steps use it.

    The order of those steps differs from start to start, and the error of whichever came first
    would say less. A broker that cannot be reached is the consumer's to wait for.
    """
    if not issubclass(app.connection_for_read().get_transport_cls(), Transport):
        return  # another broker has been warned of
    try:
        client = client_of(app)
    except (RedisError, OSError):
        return
    try:
        check_server(client, config_of(app).global_keyprefix)
    except RedisError:
        pass
    finally:
        client.close()


class Guarded(bootsteps.StartStopStep):
    """Consumer step: ties each new connection to the worker; runs again at each reconnect."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        transport = consumer.connection.transport
        if not isinstance(transport, Transport):
            return
        # Before the first fetch, whose membership has it from there.
        transport.cycle.runner = consumer.controller.superfetch_gate
        monitors_of(consumer.app).wake = transport.cycle.wake
        channel = consumer.connection.default_channel
        channel.reception = consumer.controller.reception
        fetch = channel.fetch
        membership = fetch.membership
        _forget_scheduled(consumer.timer)
        first = membership.on_joined is None
        if first:
            membership.on_joined = lambda: _first_pass(consumer.app, membership)
        # Before "ready", so that the first job waits for none of it.
        fetch.join({})
        if first:
            _introduce(consumer.app, membership)


def _introduce(app: Any, membership: Membership) -> None:
    """One line that tells whoever reads the log later what this worker went by."""
    config = membership.config
    late = "on" if app.conf.task_acks_late else "off"
    reject = "on" if app.conf.task_reject_on_worker_lost else "off"
    logger.info(
        "celery_superfetch %s: this worker is owner %s. Unheard for %g s it is taken for dead. "
        "A job is killed at its strike %d within %g h. task_acks_late is %s, "
        "task_reject_on_worker_lost is %s.",
        __version__,
        membership.owner,
        config.owner_ttl,
        config.strike_limit,
        config.strike_window / 3600,
        late,
        reject,
    )


def _forget_scheduled(timer: Any) -> None:
    """Let go of jobs that waited for their time when the connection was lost: they went back.

    Celery 5.7 only cancels them, 5.6 not even that, and kombu's timer keeps each until its time
    comes. `inspect scheduled` shows them beside those that were claimed again, and each run of the
    garbage collector walks through them, while the heart is not heard.
    """
    queue = getattr(timer, "_queue", None)
    if not isinstance(queue, list):  # gevent's has a greenlet for each
        return
    stay: list[Any] = []
    jobs: list[Any] = []
    for one in queue:
        (jobs if any(isinstance(arg, Request) for arg in one.entry.args) else stay).append(one)
    queue[:] = stay
    heapify(queue)
    for _, _, entry in jobs:
        entry.args = ()  # the request knows its entry: that would take a collector to end


def _first_pass(app: Any, membership: Membership) -> None:
    """A successor takes back what its predecessor held before it claims anything."""
    try:
        rounds = Rounds(app, membership)
        # Of its own host alone: it has watched nobody, and others may start by the thousand.
        rounds.note(rounds.reaper.reap(membership.heart.neighbours))
    except Exception:  # the worker can work without; the next pass tries again
        logger.exception("The pass at the worker's start failed; the next one tries again.")
