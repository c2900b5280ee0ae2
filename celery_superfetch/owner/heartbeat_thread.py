"""The thread that sends an owner's heartbeats, and calls the heartbeat session when the owner asks.

The owner starts the thread when it joins, and asks it to register, to beat and to leave. The thread
ends when the owner has left. If the process dies, or only this thread fails, no heartbeat comes any
more, and a peer declares the owner dead. Calls that the thread has not made yet end with a
``ConnectionError`` in the threads that asked.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError

from ..model import fork_gate
from ..model.log_text import one_line_each
from ..model.owner_record import HUNG, RETRY_INTERVAL
from .gevent_pulse import GeventPulse, threads_are_greenlets
from .heartbeat import HeartbeatSession

logger = one_line_each(logging.getLogger(__name__))

T = TypeVar("T")


class HeartbeatThread(threading.Thread):
    """The thread of a heartbeat session: it sends heartbeats until the owner has left, whatever
    else the process is busy with, and makes the calls that other threads ``call`` for."""

    def __init__(self, session: HeartbeatSession) -> None:
        super().__init__(name="superfetch-heartbeat", daemon=True)
        self.session = session
        self.stopped = False  # True: no further heartbeat is sent; a call under way is finished
        is_gevent = threads_are_greenlets()
        self.pulse = GeventPulse(session, lambda: self.stopped) if is_gevent else None
        self._asked: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Event()
        # A connection of this owner that reaches another server wakes this thread
        # (``PrimaryGuard``).
        session.primary_guard.wake = self._wake.set
        self._failing = False  # the last heartbeat failed

    def call(self, act: Callable[[], T]) -> T:
        """Call ``act`` in the heartbeat thread at once; wait for its result, and return it. Any
        thread but the heartbeat thread may call this.

        Raises ConnectionError if the heartbeat thread has stopped; and what ``act`` raises.
        """
        answer: Future[T] = Future()
        self._asked.append((act, answer))
        self._wake.set()
        while not wait([answer], RETRY_INTERVAL).done:
            if not self.is_alive() and not answer.done():
                raise RedisConnectionError("the heartbeat thread of this process has stopped")
        return answer.result()

    def run(self) -> None:
        fork_gate.mark_thread()
        session, interval = self.session, self.session.config.heartbeat_interval
        due = monotonic() + interval
        # Waits are short, since nothing ends them when a signal handler sets the owner's
        # ``stopping``: a handler must not use the lock of ``_wake``.
        while not self.stopped:
            remaining_s = due - monotonic() if session.state != HUNG else RETRY_INTERVAL
            self._wake.wait(max(0.0, min(RETRY_INTERVAL, interval, remaining_s)))
            self._wake.clear()
            if self.pulse is None:
                session.check_loop()
            while self._asked and not self.stopped:
                self._act(*self._asked.popleft())
            is_due = self._failing or monotonic() >= due or session.primary_guard.contested
            has_new_state = session.state != session.record.state
            # An owner whose loop hangs reports that once, and sends no more heartbeats: peers must
            # declare it dead.
            if not self.stopped and (has_new_state or (is_due and session.state != HUNG)):
                due = monotonic() + interval
                self._heartbeat()

    def _act(self, act: Callable[[], Any], answer: Future[Any]) -> None:
        try:
            result = act()
        except BaseException as exc:  # the thread that asked raises it
            answer.set_exception(exc)
        else:
            if not self.session.record.owner:  # the owner has left
                self.stopped = True
            answer.set_result(result)

    def _heartbeat(self) -> None:
        try:
            self.session.beat()
            if self.pulse is not None:
                self.pulse.connect_if_needed()
        except Exception as exc:  # of any kind: if this thread ended, peers would declare it dead
            if self._failing:
                return
            self._failing = True
            self._wake.set()  # try again at once: perhaps only the connection was lost
            logger.warning(
                "Heartbeat failed (owner=%s): %r. Tried again every %g s; after %g s without a "
                "heartbeat, other hosts declare this worker dead and recover its jobs. Check "
                "that this host reaches Redis.",
                self.session.record.owner,
                exc,
                RETRY_INTERVAL,
                self.session.config.owner_ttl,
            )
        else:
            if self._failing:
                logger.info("Heartbeat restored (owner=%s).", self.session.record.owner)
            self._failing = False
