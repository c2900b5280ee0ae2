"""The thread that sends an owner's heartbeats, and calls the heartbeat session when the owner asks.

The owner starts it when it joins, and asks it to register, to beat and to leave. It ends when the
owner has left. If the process dies, or this thread alone fails, no heartbeat comes any more, and a
peer declares the owner dead.
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

from ..model import forks
from ..model.facts import HUNG, RETRY_INTERVAL
from ..model.log_text import one_line_each
from .gevent_pulse import GeventPulse, threads_are_greenlets
from .heartbeat import HeartbeatSession

logger = one_line_each(logging.getLogger(__name__))

T = TypeVar("T")


class HeartbeatThread(threading.Thread):
    """The thread of a heartbeat session: it sends heartbeats until the owner has left, whatever
    else the process is busy with, and makes the calls that other threads ``ask`` for."""

    def __init__(self, session: HeartbeatSession) -> None:
        super().__init__(name="superfetch-heartbeat", daemon=True)
        self.session = session
        self.stopped = False  # set, it sends no more; what is under way goes on
        is_gevent = threads_are_greenlets()
        self.pulse = GeventPulse(session, lambda: self.stopped) if is_gevent else None
        self._asked: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Event()
        session.home.wake = self._wake.set
        self._failing = False

    def ask(self, act: Callable[[], T]) -> T:
        """Call ``act`` in the heartbeat thread at once; wait for its result, and return it.
        Any other thread calls this.

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
        forks.mark_thread()
        session, interval = self.session, self.session.config.heartbeat_interval
        due = monotonic() + interval
        # Short waits: a signal handler can set a flag, but must not touch this thread's lock.
        while not self.stopped:
            left = due - monotonic() if session.state != HUNG else RETRY_INTERVAL
            self._wake.wait(max(0.0, min(RETRY_INTERVAL, interval, left)))
            self._wake.clear()
            if self.pulse is None:
                session.check_loop()
            while self._asked and not self.stopped:
                self._act(*self._asked.popleft())
            is_due = self._failing or monotonic() >= due or session.home.contested
            has_new_state = session.state != session.facts.state
            # An owner whose loop hangs reports that once, and sends no more heartbeats: peers must
            # declare it dead.
            if not self.stopped and (has_new_state or (is_due and session.state != HUNG)):
                due = monotonic() + interval
                self._heartbeat()

    def _act(self, act: Callable[[], Any], answer: Future[Any]) -> None:
        try:
            said = act()
        except BaseException as exc:  # the thread that asked raises it
            answer.set_exception(exc)
        else:
            if not self.session.facts.owner:  # it has left
                self.stopped = True
            answer.set_result(said)

    def _heartbeat(self) -> None:
        try:
            self.session.beat()
            if self.pulse is not None:
                self.pulse.tend()
        except Exception as exc:  # of any kind: without heartbeats the owner is declared dead
            if self._failing:
                return
            self._failing = True
            self._wake.set()  # the connection alone may be lost: once more, on another
            logger.warning(
                "Heartbeat of owner %s failed: %r. Retrying every %g s; other hosts take this "
                "process for dead after %g s of silence.",
                self.session.facts.owner,
                exc,
                RETRY_INTERVAL,
                self.session.config.owner_ttl,
            )
        else:
            if self._failing:
                logger.info("Heartbeat of owner %s is heard again.", self.session.facts.owner)
            self._failing = False
