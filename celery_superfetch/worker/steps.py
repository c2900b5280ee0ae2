"""The bootsteps of a Celery worker. ``Maintenance`` makes the worker's gate, threads and signal
handlers once; ``Guarded`` ties each connection of the consumer to the gate.

Celery loads them by name (``app.installation``) and calls them in the worker's main thread. If the
process dies in one, the jobs that it has claimed are in the private list, and are recovered.

Foreign names:

kombu
    let greenlets run while the worker waits for the broker: utils.functional:sleep
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery import bootsteps, signals
from celery.utils.log import get_logger
from kombu.utils import functional
from redis.exceptions import RedisError

from ..app.broker import client_of, config_of, database_of
from ..app.guard import limits_of
from ..app.installation import configure
from ..app.result_backends import patch_backends_of_tasks
from ..app.slot_results import check_results
from ..errors import SuperfetchError, UnsupportedBroker
from ..model.config import NOT_THE_USERS
from ..model.early_tasks import early_tasks, listed
from ..model.foreign import loggable
from ..model.log_text import one_line_each
from ..model.version import __version__
from ..owner.gevent_pulse import threads_are_greenlets
from ..owner.owner import Owner
from ..store.redis.scripts import read_all
from ..store.redis.server import check_platform, check_server, tried_again
from ..transport.intake import Intake
from ..transport.transport import Transport
from ..transport.versions import check_versions
from . import unreceivable
from .celerys_logs import add_filters, remove_filters
from .control import recall_revoked
from .gate import Gate
from .maintenance import MaintenanceThread, ReleaseThread, Rounds
from .own_errors import exit_with_failure, fails_by_itself
from .pool_process import report_from_processes
from .request import use_our_request
from .stopping import Stopper, wrap_handlers
from .unknown_tasks import Discards

logger = one_line_each(get_logger(__name__))

EVENTLET = "celery.concurrency.eventlet"  # the module of its pool

#: The attribute of a task by which Celery 5.7 retries a job whose pool process was lost.
RETRIES = "retry_on_worker_lost"

JOINED_FOR = 5.0  # seconds that the end of a worker waits for the pass under way


class Maintenance(bootsteps.StartStopStep):
    """The worker's bootstep: refuses to start what cannot work, and starts and ends what a worker
    has once."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        if not issubclass(worker.app.connection_for_read().get_transport_cls(), Transport):
            self.enabled = False  # no option is read: they may be those of another broker
            return
        read_all()
        self.pid = os.getpid()
        self.thread = MaintenanceThread(worker.app)
        self.release_thread = ReleaseThread()
        self.stopper = Stopper(worker)
        if worker.pool_cls.__module__ == EVENTLET:
            raise SystemExit(
                "celery_superfetch: the eventlet pool is not supported. A job that does not yield "
                "would stop this worker's heartbeats, and others would take it for dead. Start the "
                "worker with -P gevent or -P threads."
            )
        try:
            check_platform()
            check_versions()
            # A module may have replaced broker_transport_options after the app was finalized. The
            # options of install() would be back at their defaults.
            configure(worker.app)
            config_of(worker.app)
        except SuperfetchError as exc:
            raise SystemExit(f"celery_superfetch: {exc}") from exc
        add_filters(worker)

    def create(self, worker: Any) -> None:
        """Make the pool's processes report; Celery calls this before it starts the pool."""
        report_from_processes(worker.pool)

    def start(self, worker: Any) -> None:
        if threads_are_greenlets():
            # Celery's start imports kombu in the midst of gevent's patching, which misses the
            # ``sleep`` between two tries to connect: jobs and heart would stop for half a minute.
            functional.sleep = time.sleep
        app = worker.app
        # A server that cannot carry the guarantee ends the worker here, with one line in the log.
        # If it cannot be reached, the consumer tries again, and checks it then.
        try:
            with suppress(RedisError, OSError), client_of(app) as client:
                check_server(client, config_of(app).global_keyprefix)
        except UnsupportedBroker as exc:
            # Raised as it is, it would come with a traceback of forty lines.
            logger.critical("This worker ends: %s", exc)
            raise SystemExit(1) from exc
        check_results(app)
        patch_backends_of_tasks(app)  # also those that came after the app was finalized
        _switch_off_retries_of_lost_runs(app)
        use_our_request(worker)
        Discards(worker)
        limits = limits_of(app)
        for task in app.tasks:
            limits.strikes(task)  # what makes no sense is said now, not at a death
            limits.stops(task)
        worker.superfetch_gate = Gate(worker)
        self.thread.start()
        self.release_thread.start()
        self.stopper.start()
        wrap_handlers(self.stopper)
        signals.worker_shutting_down.connect(self.on_shutting_down, sender=worker.hostname)
        signals.worker_shutdown.connect(self.on_shutdown, sender=worker)
        worker.blueprint.on_stopped = partial(self.on_stopped, worker, worker.blueprint.on_stopped)

    def on_shutting_down(self, **_: Any) -> None:
        """Mark the worker as stopping; runs in Celery's signal handler. At the first SIGINT Celery
        has just installed the handler for the next one, which is wrapped here."""
        self.stopper.say_so()
        wrap_handlers(self.stopper)

    def on_stopped(self, worker: Any, celerys: Callable[[], object]) -> None:
        """Remove the filters from Celery's loggers: all steps have stopped, and the pool logs no
        more."""
        remove_filters(worker)
        celerys()

    def on_shutdown(self, sender: Any, **_: Any) -> None:
        """Add the runs that ended since the last count to the metrics. The pool is empty."""
        if os.getpid() != self.pid:
            return
        signals.worker_shutdown.disconnect(self.on_shutdown, sender=sender)
        with suppress(RedisError, OSError), client_of(sender.app) as client:
            sender.superfetch_gate.run_counts.count(database_of(sender.app, client))

    def terminate(self, worker: Any) -> None:
        """End the threads, in a cold shutdown; do nothing in a process that was forked from the
        worker: the threads are its parent's."""
        if os.getpid() == self.pid:
            self._end(worker)
            signals.worker_shutdown.disconnect(self.on_shutdown, sender=worker)

    def _end(self, worker: Any) -> None:
        self.stopper.over.set()
        signals.worker_shutting_down.disconnect(self.on_shutting_down, sender=worker.hostname)
        self.thread.over.set()
        self.release_thread.over.set()

    def close(self, worker: Any) -> None:
        """Mark the worker as stopping, and find out whether it ends by an error. Celery calls this
        first in any shutdown, while the pool still has its jobs."""
        if os.getpid() == self.pid:
            exit_with_failure(worker)
            self.stopper.say_so(failing=fails_by_itself(worker))

    def stop(self, worker: Any) -> None:
        """End the threads, and requeue the jobs that have not started. Celery calls this after the
        consumer has stopped, and before the pool waits for its jobs. Does nothing in a process that
        a receiver of a signal forked: the jobs are its parent's."""
        if os.getpid() != self.pid:
            return
        self._end(worker)
        self.stopper.requeue_waiting()
        if self.thread.is_alive():
            self.thread.join(JOINED_FOR)


class Guarded(bootsteps.StartStopStep):
    """The consumer's bootstep: ties each new connection to the worker's gate, and registers the
    owner before the first claim. Celery starts it again at each reconnect."""

    requires = ("celery.worker.consumer.connection:Connection",)

    introduced = False

    def start(self, consumer: Any) -> None:
        transport = consumer.connection.transport
        if not isinstance(transport, Transport):
            return
        recall_revoked(consumer)
        # Before the first fetch: it makes the owner, with the executor that the poller has then.
        transport.cycle.runner = consumer.controller.superfetch_gate
        channel = consumer.connection.default_channel
        channel.intake = Intake(
            intercept=unreceivable.intercept,
            park=unreceivable.parks,
            refuse=unreceivable.refuses,
        )
        owner = channel.owner
        is_new = not owner.name
        # Before Celery logs "ready", so that the first job does not wait for it.
        with tried_again():
            channel.fetch.upkeep.register({})  # the owner, as yet without queue lists
        if is_new:
            _first_pass(consumer.app, owner)
        if not self.introduced:
            self.introduced = True
            conf, config = consumer.app.conf, owner.config
            logger.info(
                "celery_superfetch %s: this worker is owner %s. Unheard for %g s it is taken for "
                "dead. A job is killed at its strike %d within %g h. task_acks_late is %s, "
                "task_reject_on_worker_lost is %s.",
                __version__,
                owner.name,
                config.owner_ttl,
                config.strike_limit,
                config.strike_window / 3600,
                "on" if conf.task_acks_late else "off",
                "on" if conf.task_reject_on_worker_lost else "off",
            )
            _name_early_tasks(consumer.app)


def _name_early_tasks(app: Any) -> None:
    """Log which tasks have copied other settings than those that the worker has just logged."""
    try:
        for is_warning, text in early_tasks(app).messages():
            logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
    except Exception as exc:  # a property of a task, say: no reason not to start
        logger.warning(
            "It cannot be said which tasks ack early: a task's attributes cannot be read.",
            exc_info=loggable(exc),
        )


def _switch_off_retries_of_lost_runs(app: Any) -> None:
    """Switch off Celery 5.7's ``task_retry_on_worker_lost``, and log a warning if it was on. Celery
    would publish a job whose pool process was lost as another message: its strikes are counted by
    its bytes, so that with ``max_retries=None`` its losses would have no end."""
    retried = [name for name, task in app.tasks.items() if getattr(task, RETRIES, None)]
    if not retried:
        return
    app.conf[f"task_{RETRIES}"] = False  # for a task that is registered later
    for name in retried:
        setattr(app.tasks[name], RETRIES, False)
    tasks = sorted(name for name in retried if not name.startswith(NOT_THE_USERS))
    logger.warning(
        "task_retry_on_worker_lost is switched off (tasks=%s). A job whose pool process was lost "
        "is recovered with a strike instead, and strike_limit ends it. Remove the setting.",
        listed(tasks),
    )
    if early := [name for name in tasks if not app.tasks[name].acks_late]:
        logger.warning(
            "Jobs of these tasks fail if their pool process is lost, since they are acked before "
            "they run: %s. Set acks_late=True on the tasks.",
            listed(early),
        )


def _first_pass(app: Any, owner: Owner) -> None:
    """Make a reap pass before the first claim: a worker that was restarted takes back what its
    predecessor on this host held."""
    try:
        rounds = Rounds(app, owner)
        # Of its own host alone: it has watched no heartbeat yet, by which it could judge remote
        # owners, and a thousand workers may start at once.
        rounds.note(rounds.reaper.reap(owner.neighbours))
    except Exception:
        logger.exception("The pass at the worker's start failed; the next one tries again.")
