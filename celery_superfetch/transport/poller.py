"""kombu's poller, which also watches the sockets of blocking reads and lets each fetch loop tick.

Two loops drive it. Celery's event loop (the *hub*) calls ``on_poll_start`` before it sleeps and
the callback of each socket that is readable; the transport gives it the hub (``attach``). Without a
hub (threads, gevent, plain kombu) kombu's ``drain_events`` calls ``get``. Both let each fetch loop
tick, and deliver the jobs that are ready. A channel adds and removes its fetch loop, whose blocking
reads call ``watch`` and ``unwatch``. Other threads call ``wake``. A *round* is one pass of
``drain_events`` over the sockets that are readable.

If the process dies, its sockets close, and the server ends its blocking reads. A job that a read
brings at that moment is in a landing list of the owner on the server, and the reaper requeues it.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

kombu transport.redis:MultiChannelPoller.
    fetch once in each tick of the loop: on_poll_start() get(callback,timeout)
    read blocking reads: on_readable(fileno) handle_event(fileno,event) _fd_to_chan
    forget a connection that is closed: _chan_to_sock _on_connection_disconnect(connection)
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

from ..owner.in_flight.executor import NO_POOL
from .fetch.queue_lists import POLL_INTERVAL

if TYPE_CHECKING:
    from .fetch.fetch_loop import FetchLoop

#: The longest time (s) for which one tick of the event loop delivers jobs. Remote control, timers
#: and other sockets wait meanwhile. So do the acks of jobs that ended in a pool: if the process
#: died, those jobs would run again.
DELIVERY_BUDGET_S = 0.01


#: The pollers of this process, and of the parent that it was forked from.
_pollers: WeakSet[Poller] = WeakSet()


class Poller(MultiChannelPoller):
    """kombu's poller for BRPOP (``no_ack`` queues) and LISTEN (fanout), which fetches jobs as well.
    While there are jobs left to deliver, or after a thread has called ``wake``, a pipe (the
    *doorbell*) is readable, so that the event loop comes back at once instead of sleeping."""

    hub: Any = None
    executor = NO_POOL  # a Celery worker sets its own, before anything is fetched
    _tick_timer: Any = None
    _doorbell: tuple[int, int] | None = None
    _rung = _end_round = False
    _is_reading = False  # within kombu's ``get``
    _polled_at = 0.0  # when ``get`` read other sockets last (monotonic s)

    def __init__(self) -> None:
        super().__init__()
        #: The fetch loops of the open channels that consume.
        self._fetch_loops: list[FetchLoop] = []
        self._ticks: set[Callable[[], object]] = set()
        self._watched: dict[int, Callable[[], object]] = {}
        #: Held when another thread rings the doorbell, and when the doorbell is closed: a thread
        #: must not write to a file descriptor that was closed.
        self._door = threading.Lock()
        self._loop_thread_id = threading.get_ident()  # the id of the loop's thread
        _pollers.add(self)

    @property
    def ticks_by_itself(self) -> bool:
        """True if the next tick comes without a call of the consumer, so that an ack may wait for
        it."""
        in_other_thread = threading.get_ident() != self._loop_thread_id
        return self.hub is not None or (self.executor.endless and in_other_thread)

    @property
    def inline(self) -> bool:
        """True if jobs may run in the thread that delivers them."""
        return self.hub is None or self.executor.inline

    def attach(self, hub: Any, ticks: set[Callable[[], object]]) -> None:
        """Watch the sockets with Celery's loop from now on; ``Transport.register_with_event_loop``
        calls this at each connect.

        Arguments:
            ticks: the callbacks that kombu added to the loop's ``on_tick`` for this connection;
                ``close`` removes them, since kombu would leave them there at a reconnect.
        """
        self.hub = hub
        self._ticks |= ticks
        # kombu has put a function of its own in the place of the method. Before 5.7 that function
        # takes the tick out of the loop until the next connect. But Celery also closes the channel
        # of its remote control when a control message has failed, and does not connect again: the
        # worker would claim and ack nothing more, and be declared dead.
        self.__dict__.pop("_on_connection_disconnect", None)
        for fd, on_readable in self._watched.items():
            hub.add_reader(fd, on_readable)
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        # A timer that does nothing (``bool``) makes the loop tick once a second also if no socket
        # becomes readable: some duties of a tick are due at a time.
        self._tick_timer = hub.call_repeatedly(POLL_INTERVAL, bool)

    def _on_connection_disconnect(self, connection: Any) -> None:
        """Forget a connection that was closed, since another one may get its file descriptor. The
        connection's channel calls this."""
        for channel, client, _ in list(self._chan_to_sock):
            if client.connection is connection:
                self.forget(channel, client)
        super()._on_connection_disconnect(connection)

    def add_fetch_loop(self, fetch: FetchLoop) -> None:
        """Start to tick a fetch loop; its channel has made it."""
        self._fetch_loops.append(fetch)

    def remove_fetch_loop(self, fetch: FetchLoop) -> None:
        """Stop to tick a fetch loop; its channel closes."""
        with contextlib.suppress(ValueError):  # it was removed before: the connection has closed
            self._fetch_loops.remove(fetch)

    def watch(self, fd: int, on_readable: Callable[[], object]) -> None:
        """Call ``on_readable`` when ``fd`` is readable; it returns whether it delivered a
        message."""
        self._watched[fd] = on_readable
        if self.hub is not None:
            self.hub.add_reader(fd, on_readable)
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
        """Stop watching a client's connection, which is closed next or was closed. Under gevent
        kombu polls by ``select``, and no kernel removes a closed socket from its list. Another
        connection may get the same file descriptor, and would be read as this one."""
        for key in list(self._chan_to_sock):
            if key[:2] == (channel, client):
                del self._chan_to_sock[key]
                served = channel, key[2]
                for fd in [fd for fd, entry in self._fd_to_chan.items() if entry == served]:
                    del self._fd_to_chan[fd]
                    if fd not in self._watched:
                        self._unregister_fd(fd)

    def ring(self) -> None:
        """Make the loop come back at once. Only the loop's thread calls this; another thread calls
        ``wake``."""
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

        Such a thread calls it when a job has left, since the worker may then claim another one.
        While the prefetch is full, nothing is read that an arriving job could make readable. So
        the loop would sleep on, and the worker be idle for seconds (under gevent always, with
        threads before Celery 5.7).

        Arguments:
            end_round: make ``drain_events`` return, as after a message.
        """
        if threading.get_ident() != self._loop_thread_id:
            with self._door:
                if self._doorbell is not None:
                    self._end_round |= end_round
                    self.ring()

    def _answer(self) -> bool:
        """Answer the doorbell: deliver the jobs that are ready; return whether the round ends."""
        # The pipe is emptied, since two threads may have rung at once. It is emptied before the
        # deliveries, so that a ring during them makes the next round answer again.
        with contextlib.suppress(BlockingIOError):
            os.read(self._doorbell_ends()[0], 16)
        self._rung = False
        end_round, self._end_round = self._end_round, False
        delivered = self._deliver()
        if self._deliverable:
            self.ring()
        return delivered or end_round

    @property
    def _deliverable(self) -> bool:
        return any(fetch.deliverable for fetch in list(self._fetch_loops))

    def _deliver(self, until: float = 0.0) -> bool:
        """Deliver jobs that are ready, until the time ``until`` (monotonic s), and at least one job
        of each channel; return whether a job was delivered."""
        delivered = False
        for fetch in list(self._fetch_loops):
            while fetch.deliverable:
                delivered = fetch.deliver() or delivered
                if monotonic() >= until:
                    break
        return delivered

    def on_poll_start(self) -> None:
        """Tick, and deliver for up to ``DELIVERY_BUDGET_S`` s. Celery's loop calls this before it
        sleeps."""
        super().on_poll_start()
        if self._is_reading:  # kombu calls this from ``get``, too, which has ticked already
            return
        until, delivered = monotonic() + DELIVERY_BUDGET_S, False
        self._tick_fetch_loops()
        # In a solo pool a job is acked only after Celery's loop has ended this tick, so that each
        # tick delivers one job.
        while not self.executor.inline and self._deliverable and monotonic() < until:
            delivered = self._deliver(until) or delivered
            self._tick_fetch_loops()
        # After a delivery the next tick has to come at once: Celery's loop writes new jobs to the
        # processes of its pool only then.
        if (delivered and self._fetch_loops) or self._deliverable:
            self.ring()

    def _tick_fetch_loops(self) -> None:
        """Call ``tick`` of the fetch loop of each channel."""
        self._loop_thread_id = threading.get_ident()
        self.executor.on_tick()
        for fetch in list(self._fetch_loops):
            if fetch in self._fetch_loops:  # a tick may close another channel
                fetch.tick()

    def on_readable(self, fileno: int) -> Any:
        """Read a socket of kombu's. If kombu has not noticed yet that its socket was closed, a
        watched one may have its number by now: that one is read."""
        handler = self._watched.get(fileno)
        return handler() if handler is not None else super().on_readable(fileno)

    def handle_event(self, fileno: int, event: int) -> Any:
        if fileno in self._watched:
            # A true value ends the round, and ``drain_events`` returns.
            return self.on_readable(fileno) or None
        # A socket that was read earlier in this round may have closed this one.
        return super().handle_event(fileno, event) if fileno in self._fd_to_chan else None

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Tick, and deliver one job or wait for a socket. kombu's ``drain_events`` calls this."""
        self._tick_fetch_loops()
        if self._deliverable and self._deliver_here(callback):
            return None
        wait = POLL_INTERVAL if timeout is None else min(timeout, POLL_INTERVAL)
        return self._read(callback, wait)

    def _read(self, callback: Any, timeout: float) -> Any:
        """Wait for a socket, as kombu does; raise Empty if no message came."""
        self._is_reading = True
        try:
            return super().get(callback, timeout)
        finally:
            self._is_reading = False

    def _deliver_here(self, callback: Any) -> bool:
        """Deliver one job, or one message from another socket (BRPOP, broadcasts); return whether
        something was delivered. In Celery's worker the other sockets are read first, since remote
        control is the most urgent; a plain consumer reads them first once in ``DELIVERY_BUDGET_S``
        seconds."""
        self._doorbell_ends()  # makes it, so that a thread that acks the job can wake the loop
        now = monotonic()
        if self.executor.endless or now >= self._polled_at + DELIVERY_BUDGET_S:
            self._polled_at = now
            with contextlib.suppress(Empty):
                self._read(callback, 0)
                return True
        return self._deliver()

    def close(self) -> None:
        """Stop watching, and close the doorbell. kombu calls this when the connection closes, or
        was lost; the channels requeue the jobs that are ready."""
        self.executor.on_close()
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
        self._fetch_loops.clear()
        super().close()

    def leave_to_parent(self) -> None:
        """Watch only sockets of this forked child from now on. The child has inherited the kernel's
        set of watched sockets, and shares it with the parent. If the child removed a socket from it
        (as kombu's loop does when it ends), the parent would never read that socket again."""
        self.poller, self._door = poll(), threading.Lock()
        if self.hub is not None:
            self.hub.poller = poll()
            self.hub = None


def _leave_to_parent() -> None:
    for poller in list(_pollers):
        poller.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
