"""What a Celery worker adds: its bootsteps, and what it tells the transport of its pool."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from celery import bootsteps, signals
from celery.utils.log import get_logger
from celery.worker import state
from kombu.utils import functional
from redis.exceptions import RedisError

from .connection import client_of, config_of
from .errors import SuperfetchError
from .events import monitors_of, report_losses
from .job import Job
from .maintenance import MaintenanceThread
from .membership import Membership
from .owner import start_time
from .pool_slots import Slots
from .preflight import check_platform, check_server
from .pulse import threads_are_greenlets
from .qos import claim_of
from .request import use_our_request
from .signals import ownership_lost
from .start import guard_starts
from .stopping import (
    Stopper,
    blocks_consumer,
    is_solo,
    say_so,
    wrap_handlers,
)
from .tasks import reaper_of
from .transport import Transport

logger = get_logger(__name__)


class Maintenance(bootsteps.StartStopStep):
    """Worker step: refuses what cannot work, and keeps the maintenance thread."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self.thread: MaintenanceThread | None = None
        self.stopper = Stopper(worker)
        self.report_losses = report_losses(worker.app)
        try:
            check_platform()
            config_of(worker.app)
        except SuperfetchError as exc:
            raise SystemExit(f"celery_superfetch: {exc}") from exc

    def start(self, worker: Any) -> None:
        _let_pauses_yield()
        _check_broker(worker.app)
        use_our_request(worker.app, worker.pool)
        guard_starts(worker.pool)
        monitors_of(worker.app).worker = worker
        ownership_lost.connect(self.report_losses)
        self.thread = MaintenanceThread(worker.app)
        self.thread.start()
        self.stopper.start()
        wrap_handlers(worker)
        # The first SIGINT puts Celery's handler of the next one in place.
        signals.worker_shutting_down.connect(
            lambda **_: wrap_handlers(worker), sender=worker.hostname, weak=False
        )

    def close(self, worker: Any) -> None:
        """The first thing of a shutdown, whatever asked for it, while the pool knows its jobs."""
        say_so()

    def stop(self, worker: Any) -> None:
        """The consumer has stopped and the pool has not: it waits for its jobs after this."""
        self.stopper.stop()
        self.stopper.give_back()
        ownership_lost.disconnect(self.report_losses)
        if self.thread is not None:
            self.thread.stop()
            self.thread = None


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
        check_server(client)
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
        transport.cycle.solo = is_solo(consumer.pool)
        transport.cycle.endless = True
        transport.cycle.blocks = blocks_consumer(consumer.pool)
        fetch = consumer.connection.default_channel.fetch
        membership = fetch.membership
        membership.pool = _PoolPids(consumer.pool)
        membership.in_flight.running = _running
        # Without those that wait for their time, or for their rate limit. Celery before 5.7 forgets
        # at a reconnect that what runs on was reserved.
        membership.in_flight.reserve = lambda: max(
            0, len(state.reserved_requests) - len(state.active_requests)
        )
        slots = Slots(consumer.pool)
        membership.in_flight.leases.free = slots.free
        membership.in_flight.leases.has_slot = slots.next_has_one
        if not membership.on_joined:
            membership.on_joined.append(lambda: _first_pass(consumer.app, membership))
        # Before "ready", so that the first job waits for none of it.
        fetch.join({})


def _running() -> list[Job]:
    """The jobs that a pool has accepted; their acks are still to come."""
    claims = [claim_of(request) for request in list(state.active_requests)]
    return [claimed.job for claimed in claims if claimed is not None]


def _first_pass(app: Any, membership: Membership) -> None:
    """A successor takes back what its predecessor held before it claims anything."""
    try:
        report = reaper_of(app, membership.client, membership.watch).reap()
        membership.in_flight.probation |= report.probation
    except Exception:  # the worker can work without; the next pass tries again
        logger.exception("The pass at the worker's start failed; the next one tries again.")


class _PoolPids:
    """The pids of a prefork pool with their start times; other pools have none."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self._known: dict[int, str] = {}

    def __call__(self) -> Sequence[tuple[int, str]]:
        processes = getattr(getattr(self.pool, "_pool", None), "_pool", None)
        pids = [p.pid for p in list(processes or ()) if isinstance(getattr(p, "pid", None), int)]
        self._known = {pid: self._known.get(pid) or start_time(pid) or "" for pid in pids}
        return sorted(self._known.items())


@signals.worker_shutting_down.connect(weak=False)
def _on_shutting_down(**_: Any) -> None:
    """Runs in the signal handler: sets flags, nothing else."""
    say_so()
