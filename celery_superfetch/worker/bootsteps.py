"""The bootsteps of a Celery worker: the parts that Celery starts and stops in order.

``Maintenance`` makes the other parts once for each worker: its gate, which starts jobs in the pool
(``gate.py``), its threads and its signal handlers. ``Guarded`` ties each connection of the consumer
to the gate, and registers the worker as an *owner* (a process that claims jobs) in Redis.

Celery loads both by name (``app/installation.py`` adds them to the app) and calls them in the
worker's main thread. If the process dies in a bootstep, the jobs that it has claimed are in its
private list in Redis, and the reaper of another worker, or of the next one on this host
(``_first_pass``), recovers them. Run counts for metrics that were not added are lost.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

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
from ..model.config import INTERNAL_TASK_PREFIXES
from ..model.early_tasks import early_tasks, listed
from ..model.foreign import loggable
from ..model.log_text import one_line_each
from ..model.version import __version__
from ..owner.gevent_pulse import threads_are_greenlets
from ..owner.owner import Owner
from ..store.redis.scripts import read_all
from ..store.redis.server import as_connection_error, check_platform, check_server
from ..transport.intake import Intake
from ..transport.transport import Transport
from ..transport.versions import check_versions
from . import job_limits, scheduled_jobs, unreadable_jobs
from .celerys_logs import add_filters, remove_filters
from .control import recall_revoked
from .gate import Gate
from .maintenance import MaintenanceThread, OwnerMaintenance, ReleaseThread
from .own_errors import exit_with_failure, job_may_have_ended_worker
from .pool_process import report_from_processes
from .pool_slots import write_to_idle_processes
from .request import use_our_request
from .stopping import Stopper, owners_of, wrap_handlers
from .unknown_tasks import Discards

logger = one_line_each(get_logger(__name__))

EVENTLET = "celery.concurrency.eventlet"  # the module of its pool

#: The attribute of a task by which Celery 5.7 retries a job whose pool process was lost.
RETRIES = "retry_on_worker_lost"

JOINED_FOR = 5.0  # seconds that the end of a worker waits for the pass under way


class Maintenance(bootsteps.StartStopStep):
    """The worker's bootstep. It refuses to start a worker that cannot work (its platform, pool,
    server or configuration is not supported), and makes, starts and ends the parts of which a
    worker has one: its gate, threads and signal handlers."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        if not issubclass(worker.app.connection_for_read().get_transport_cls(), Transport):
            self.enabled = False  # no option is read: they may be those of another broker
            return
        read_all()  # the Lua scripts, from their files
        self.pid = os.getpid()
        self.thread = MaintenanceThread(worker.app)
        self.release_thread = ReleaseThread()
        self.stopper = Stopper(worker)
        if worker.pool_cls.__module__ == EVENTLET:
            raise SystemExit(
                "celery_superfetch: the eventlet pool is not supported: a job that does not "
                "yield would stop the worker's heartbeats, and the worker would be declared "
                "dead. Use -P gevent or -P threads."
            )
        try:
            check_platform()
            check_versions()
            # A module may have replaced broker_transport_options after the app was finalized.
            # Without this call the options of install() would be lost.
            configure(worker.app)
            config_of(worker.app)
        except SuperfetchError as exc:
            raise SystemExit(f"celery_superfetch: {exc}") from exc
        add_filters(worker)

    def create(self, worker: Any) -> None:
        """Make the pool's processes run ``PoolProcess``, which sends reports to this worker, and
        get a job only when they are idle. Celery calls this before it starts the pool."""
        report_from_processes(worker.pool)
        write_to_idle_processes(worker.pool)

    def start(self, worker: Any) -> None:
        if threads_are_greenlets():
            # Celery's start imports kombu in the midst of gevent's patching, which so misses the
            # ``sleep`` that kombu uses between two tries to connect. All greenlets, and with them
            # jobs and heartbeats, would stop for half a minute.
            functional.sleep = time.sleep
        app = worker.app
        # If jobs could be lost on the server (Redis before 6.2, a Sentinel, a cluster without a
        # hash tag), the worker ends here, with one line in the log. If the server cannot be
        # reached, the consumer tries again to connect, and checks it then.
        try:
            with suppress(RedisError, OSError), client_of(app) as client:
                check_server(client, config_of(app).global_keyprefix)
        except UnsupportedBroker as exc:
            # If the error itself was raised, the log would have a traceback of forty lines.
            logger.critical("This worker cannot start: %s", exc)
            raise SystemExit(1) from exc
        check_results(app)
        patch_backends_of_tasks(app)  # also those that came after the app was finalized
        _switch_off_retries_of_lost_runs(app)
        use_our_request(worker)
        Discards(worker)
        limits = limits_of(app)
        for task in app.tasks:
            # So that a bad limit is logged now, and not first at a death.
            limits.strikes(task)
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
        """Mark the worker as stopping; runs in Celery's signal handler. If the signal was the first
        SIGINT, Celery has just installed another handler, for the second SIGINT: wrap that, too."""
        self.stopper.mark_stopping()
        wrap_handlers(self.stopper)

    def on_stopped(self, worker: Any, celerys: Callable[[], object]) -> None:
        """End the maintenance thread, and remove the filters from Celery's loggers: all steps have
        stopped, the pool has no job left, and logs no more. If the worker was embedded, its process
        continues without a maintenance thread: let its owners leave as soon as the server takes
        what is pending."""
        remove_filters(worker)
        if os.getpid() == self.pid and not self.thread.over.is_set():  # set in a cold shutdown
            self.thread.over.set()
            if self.thread.is_alive():
                self.thread.join(JOINED_FOR)
        celerys()  # this closes the consumer's connection
        if os.getpid() == self.pid:
            for owner in owners_of(worker):
                owner.leave_later()

    def on_shutdown(self, sender: Any, **_: Any) -> None:
        """Add the runs that ended since the last count to the metrics. The pool is empty."""
        if os.getpid() != self.pid:
            return
        signals.worker_shutdown.disconnect(self.on_shutdown, sender=sender)
        with suppress(RedisError, OSError), client_of(sender.app) as client:
            sender.superfetch_gate.run_counts.count(database_of(sender.app, client))

    def terminate(self, worker: Any) -> None:
        """End the threads, in a cold shutdown. Do nothing in a process that was forked from the
        worker, since the threads are those of its parent. Run counts are not added: a cold shutdown
        does not wait for the server."""
        if os.getpid() == self.pid:
            self._end(worker)
            self.thread.over.set()
            signals.worker_shutdown.disconnect(self.on_shutdown, sender=worker)

    def _end(self, worker: Any) -> None:
        self.stopper.over.set()
        signals.worker_shutting_down.disconnect(self.on_shutting_down, sender=worker.hostname)
        self.release_thread.over.set()

    def close(self, worker: Any) -> None:
        """Mark the worker as stopping, and find out whether it ends by an error. Celery calls this
        first in any shutdown, while the pool still has its jobs."""
        if os.getpid() == self.pid:
            exit_with_failure(worker)
            self.stopper.mark_stopping(failing=job_may_have_ended_worker(worker))

    def stop(self, worker: Any) -> None:
        """Requeue the jobs that have not started, and end the threads except that of maintenance.
        Celery calls this after the consumer has stopped, and before the pool waits for its jobs,
        which may take hours: if the maintenance thread ended now, a requeue that the server refuses
        at this moment would not be sent again meanwhile. Do nothing in a process that a receiver of
        a signal forked, since the jobs are those of its parent."""
        if os.getpid() != self.pid:
            return
        self._end(worker)
        for owner in owners_of(worker):
            owner.leases.end_pauses()
        self.stopper.requeue_waiting()


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
        # Before the first fetch, which makes the owner: the owner gets the executor that the poller
        # (``transport.cycle``) has at that time, and a worker's executor is its gate.
        transport.cycle.executor = consumer.controller.superfetch_gate
        channel = consumer.connection.default_channel
        channel.intake = Intake(
            apply_limits=job_limits.apply_limits,
            park_if_due_later=scheduled_jobs.park_if_due_later,
            reject_unreadable=unreadable_jobs.reject_unreadable,
        )
        owner = channel.owner
        is_new = not owner.name
        # Before Celery logs "ready", so that the first job does not wait for the registration.
        with as_connection_error():  # if the server refuses all writes, the consumer connects again
            channel.fetch.upkeep.register({})  # the owner, as yet without queue lists
        if is_new:
            _first_pass(consumer.app, owner)
        if not self.introduced:
            self.introduced = True
            conf, config = consumer.app.conf, owner.config
            logger.info(
                "celery_superfetch %s: worker registered (owner=%s, owner_ttl=%g s, "
                "strike_limit=%d, strike_window=%g h, task_acks_late=%s, "
                "task_reject_on_worker_lost=%s).",
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
    """Log which tasks have other settings than those that the worker has just logged: they copied
    the app's settings when they were made, and the settings were changed later."""
    try:
        for is_warning, text in early_tasks(app).messages():
            logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
    except Exception as exc:  # a property of a task, say: no reason not to start
        logger.warning(
            "Cannot tell which tasks ack before they run: an attribute of a task raises when "
            "read. Fix that task; the traceback follows.",
            exc_info=loggable(exc),
        )


def _switch_off_retries_of_lost_runs(app: Any) -> None:
    """Switch off Celery 5.7's ``task_retry_on_worker_lost``, and log a warning if it was on. Celery
    would publish a job whose pool process was lost again, as another message. Strikes are counted
    for the bytes of a message, so each such message would begin without strikes, and with
    ``max_retries=None`` the job could kill processes without end."""
    retried = [name for name, task in app.tasks.items() if getattr(task, RETRIES, None)]
    if not retried:
        return
    app.conf[f"task_{RETRIES}"] = False  # for a task that is registered later
    for name in retried:
        setattr(app.tasks[name], RETRIES, False)
    tasks = sorted(name for name in retried if not name.startswith(INTERNAL_TASK_PREFIXES))
    logger.warning(
        "task_retry_on_worker_lost was switched off (tasks=%s): a job whose pool process dies is "
        "recovered with a strike, up to its strike_limit. Remove the setting.",
        listed(tasks),
    )
    if early := [name for name in tasks if not app.tasks[name].acks_late]:
        logger.warning(
            "Jobs of these tasks fail if their pool process dies, since they are acked before "
            "they run: %s. Set acks_late=True on the tasks.",
            listed(early),
        )


def _first_pass(app: Any, owner: Owner) -> None:
    """Make a reap pass before the first claim: a worker that was restarted recovers the jobs of its
    predecessor on this host."""
    try:
        maintenance = OwnerMaintenance(app, owner)
        # Over the owners of this host alone. This worker has not watched any heartbeats yet, by
        # which it could judge other owners, and a thousand workers may start at once.
        maintenance.add_suspects(maintenance.reaper.reap(owner.host_peers))
    except Exception:
        logger.exception(
            "The reap pass at the worker's start failed: jobs of dead workers wait until the next "
            "pass. The traceback follows."
        )
