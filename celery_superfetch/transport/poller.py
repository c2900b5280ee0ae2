"""kombu's poller, which also watches the sockets of blocking reads and lets each fetch loop tick.

It has two callers. Celery's event loop (the *hub*) calls ``on_poll_start`` before it sleeps and
``on_readable`` for a socket; without a hub (threads, gevent, plain kombu) ``drain_events`` calls
``get``. Both let each fetch loop tick, and deliver the jobs that are ready. Other threads call
``wake``. If the process dies, its sockets close, and the server ends its blocking reads; a job that
one of them brings at that moment has landed, and the reaper requeues it.

Foreign names:

kombu transport.redis:MultiChannelPoller.
    fetch once in each tick of the loop: _channels _in_protected_read on_poll_start()
        get(callback,timeout)
    read blocking reads: on_readable(fileno) handle_event(fileno,event) _fd_to_chan
    forget a connection that is closed: _chan_to_sock
kombu asynchronous.hub:Hub.
    watch no socket together with a forked child: _create_poller()
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kombu.transport.redis import MultiChannelPoller
from kombu.utils.eventio import poll

from ..owner.in_flight.executor import CONSUMER
from .fetch.queue_lists import POLL_INTERVAL

if TYPE_CHECKING:
    from .fetch.fetch_loop import FetchLoop

#: Most seconds of deliveries in one tick of the event loop. Remote control, timers and other
#: sockets wait meanwhile; and so do the acks of jobs that ended in a pool: a crash would run these
#: again.
DELIVERING = 0.01


#: The pollers of this process, and of the parent that it was forked from.
_pollers: WeakSet[Poller] = WeakSet()


class Poller(MultiChannelPoller):
    """kombu's poller for BRPOP (``no_ack`` queues) and LISTEN (fanout), which fetches jobs as well.
    While some are left to deliver, or a thread calls ``wake``, a pipe is readable (the *doorbell*),
    so that any event loop comes back at once."""

    hub: Any = None
    runner = CONSUMER  # a Celery worker sets its own, before anything is fetched
    _tick_timer: Any = None
    _doorbell: tuple[int, int] | None = None
    _rung = _end_round = False
    _polled_at = 0.0  # when ``get`` read other sockets last (monotonic s)

    def __init__(self) -> None:
        super().__init__()
        self._ticks: set[Callable[[], object]] = set()
        self._watched: dict[int, Callable[[], object]] = {}
        #: Held where the doorbell is rung from elsewhere, and where it is taken down.
        self._door = threading.Lock()
        self._loop = threading.get_ident()
        _pollers.add(self)

    @property
    def comes_back(self) -> bool:
        """Whether the next tick comes without a call of the consumer, so that an ack may wait for
        it."""
        elsewhere = threading.get_ident() != self._loop
        return self.hub is not None or (self.runner.endless and elsewhere)

    @property
    def inline(self) -> bool:
        """Whether jobs may run in the thread that delivers them."""
        return self.hub is None or self.runner.inline

    def attach(self, hub: Any, ticks: set[Callable[[], object]]) -> None:
        """Watch the sockets with Celery's loop from now on. ``ticks`` are the callbacks that kombu
        gave to that loop; ``close`` removes them, since kombu would leave them at a reconnect."""
        self.hub = hub
        self._ticks |= ticks
        for fd in self._watched:
            hub.add_reader(fd, self.on_readable, fd)
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        # A tick a second also if no socket becomes readable: some of its duties are due at a time.
        self._tick_timer = hub.call_repeatedly(POLL_INTERVAL, bool)

    def watch(self, fd: int, on_readable: Callable[[], object]) -> None:
        """Call ``on_readable`` when ``fd`` is; it returns whether it delivered a message."""
        self._watched[fd] = on_readable
        if self.hub is not None:
            self.hub.add_reader(fd, self.on_readable, fd)
        else:
            self.poller.register(fd, self.eventflags)

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._unregister_fd(fd)

    def _unregister_fd(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):
            if self.hub is not None:
                self.hub.remove_reader(fd)
            else:
                self.poller.unregister(fd)

    def forget(self, channel: Any, client: Any) -> None:
        """Stop watching a client's connection, before it is closed. Under gevent kombu polls by
        ``select``, from which no kernel takes a closed socket; and another connection may get its
        number, and would be read as this one."""
        for key in list(self._chan_to_sock):
            if key[:2] == (channel, client):
                del self._chan_to_sock[key]
                served = channel, key[2]
                for fd in [fd for fd, entry in self._fd_to_chan.items() if entry == served]:
                    del self._fd_to_chan[fd]
                    if fd not in self._watched:
                        self._unregister_fd(fd)

    def ring(self) -> None:
        """Let the loop come back at once; in another thread call ``wake``."""
        doorbell = self._doorbell_ends()
        if not self._rung:
            self._rung = True
            os.write(doorbell[1], b"!")

    def _doorbell_ends(self) -> tuple[int, int]:
        """Return the two ends of the doorbell's pipe, and make it at the first call."""
        if self._doorbell is None:
            self._doorbell = os.pipe()
            os.set_blocking(self._doorbell[0], False)
            self.watch(self._doorbell[0], self._answer)
        return self._doorbell

    def wake(self, *, end_round: bool = False) -> None:
        """Make the loop come back at once, if this is another thread, or greenlet, than the loop's.

        Such a thread calls it when a job has left: that may make room in a prefetch that was full.
        While it is full, no job's arrival ends the loop's sleep, and so the worker would be idle
        for seconds (under gevent always, with threads before Celery 5.7).

        Arguments:
            end_round: let ``drain_events`` return, as for a message.
        """
        if threading.get_ident() != self._loop:
            with self._door:
                if self._doorbell is not None:
                    self._end_round |= end_round
                    self.ring()

    def _answer(self) -> bool:
        """Deliver what is ready since the doorbell was rung; return whether the round ends."""
        # All of it, since two threads may have rung at once; and first, so that a thread that rings
        # during the deliveries is heard by the next round.
        with contextlib.suppress(BlockingIOError):
            os.read(self._doorbell_ends()[0], 16)
        self._rung = False
        end_round, self._end_round = self._end_round, False
        delivered = self._deliver()
        if self._deliverable:
            self.ring()
        return delivered or end_round

    @property
    def _fetches(self) -> list[FetchLoop]:
        return [made for channel in list(self._channels) if (made := channel._fetch) is not None]

    @property
    def _deliverable(self) -> bool:
        return any(fetch.deliverable for fetch in self._fetches)

    def _deliver(self, until: float = 0.0) -> bool:
        """Deliver what is ready, until some time (monotonic s), and at least one job of each
        channel; return whether one was delivered."""
        delivered = False
        for fetch in self._fetches:
            while fetch.deliverable:
                delivered = fetch.deliver() or delivered
                if monotonic() >= until:
                    break
        return delivered

    def on_poll_start(self) -> None:
        """Tick, and deliver for up to ``DELIVERING``. Celery's loop calls this before it sleeps."""
        super().on_poll_start()
        if self._in_protected_read:  # kombu calls this from ``get``, too, which has ticked already
            return
        until, delivered = monotonic() + DELIVERING, False
        self._tick_fetch_loops()
        # In a solo pool a job acks when Celery's loop has ended this tick: one job a tick.
        while not self.runner.inline and self._deliverable and monotonic() < until:
            delivered = self._deliver(until) or delivered
            self._tick_fetch_loops()
        # After a delivery the next tick has to come at once: Celery's loop writes new jobs to the
        # processes of its pool only then.
        if (delivered and self._channels) or self._deliverable:
            self.ring()

    def _tick_fetch_loops(self) -> None:
        """Let the fetch loop of each channel tick."""
        self._loop = threading.get_ident()
        self.runner.on_turn()
        for channel in list(self._channels):
            if channel._fetch is not None and not channel.closed:
                channel._fetch.tick()

    def on_readable(self, fileno: int) -> Any:
        handler = self._watched.get(fileno)
        return handler() if handler is not None else super().on_readable(fileno)

    def handle_event(self, fileno: int, event: int) -> Any:
        if fileno in self._watched:
            # Truthy ends the round, and drain_events returns.
            return self.on_readable(fileno) or None
        # A socket that was read earlier in this round may have closed this one.
        return super().handle_event(fileno, event) if fileno in self._fd_to_chan else None

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Tick, and deliver one job or wait for a socket. kombu's ``drain_events`` calls this."""
        self._tick_fetch_loops()
        if self._deliverable and self._deliver_here(callback):
            return None
        wait = POLL_INTERVAL if timeout is None else min(timeout, POLL_INTERVAL)
        return super().get(callback, wait)

    def _deliver_here(self, callback: Any) -> bool:
        """Deliver one job, or what another socket has brought; return whether something was. In
        Celery's worker the other sockets are read first, since remote control is the most urgent;
        elsewhere they are so once in ``DELIVERING`` seconds."""
        self._doorbell_ends()  # makes it, so that a thread that acks the job can wake the loop
        now = monotonic()
        if self.runner.endless or now >= self._polled_at + DELIVERING:
            self._polled_at = now
            with contextlib.suppress(Empty):
                super().get(callback, 0)
                return True
        return self._deliver()

    def close(self) -> None:
        """Stop watching, and take down the doorbell. kombu calls this when the connection closes,
        or was lost; what is ready is requeued by the channels."""
        self.runner.on_close()
        for fd in list(self._watched):
            self.unwatch(fd)
        with self._door:
            for fd in self._doorbell or ():
                os.close(fd)
            self._doorbell, self._rung = None, False
        if self.hub is not None:
            self.hub.on_tick -= self._ticks
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        super().close()

    def leave_to_parent(self) -> None:
        """Watch only sockets of this forked child from now on. The kernel's set of watched sockets
        is shared with the parent: if the child removed one while it closes its copies (as kombu's
        loop does when it ends), the parent would never be told of it again."""
        self.poller, self._door = poll(), threading.Lock()
        if self.hub is not None:
            self.hub._create_poller()
            self.hub = None


def _leave_to_parent() -> None:
    for poller in list(_pollers):
        poller.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
