"""The heart of an owner: a thread and a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError

from ..model.facts import RETRY_INTERVAL, STUCK
from .gevent_heart import Pulse, threads_are_greenlets
from .heart import Heart

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Heartbeats(threading.Thread):
    """Sends heartbeats until its owner has left, whatever else the process is busy with."""

    def __init__(self, heart: Heart) -> None:
        super().__init__(name="superfetch-heartbeat", daemon=True)
        self.heart = heart
        self.pulse = Pulse(heart) if threads_are_greenlets() else None
        self._asked: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Event()
        self._stopped = False
        self._failing = False

    def stop(self) -> None:
        """Send no more; does not wait for one that is under way."""
        self._stopped = True
        if self.pulse is not None:
            self.pulse.stopped = True

    def ask(self, act: Callable[[], T]) -> T:
        """Have ``act`` done at once, by the only thread that speaks, and wait for it."""
        answer: Future[T] = Future()
        self._asked.append((act, answer))
        self._wake.set()
        while not wait([answer], RETRY_INTERVAL).done:
            if not self.is_alive() and not answer.done():
                raise RedisConnectionError("the heart of this process has stopped")
        return answer.result()

    def run(self) -> None:
        heart, interval = self.heart, self.heart.config.heartbeat_interval
        due = monotonic() + interval
        # Short waits: a signal handler can set a flag, but must not touch this thread's lock.
        while not self._stopped:
            left = due - monotonic() if heart.state != STUCK else RETRY_INTERVAL
            self._wake.wait(max(0.0, min(RETRY_INTERVAL, interval, left)))
            self._wake.clear()
            if self.pulse is None:
                heart.look()
            while self._asked and not self._stopped:
                self._act(*self._asked.popleft())
            late, news = self._failing or monotonic() >= due, heart.state != heart.facts.state
            # One whose loop is stuck says so once, and nothing more.
            if not self._stopped and (news or (late and heart.state != STUCK)):
                due = monotonic() + interval
                self._beat()

    def _act(self, act: Callable[[], Any], answer: Future[Any]) -> None:
        try:
            said = act()
        except BaseException as exc:  # it is for whoever asked
            answer.set_exception(exc)
        else:
            if not self.heart.facts.owner:  # those were its last words
                self.stop()
            answer.set_result(said)

    def _beat(self) -> None:
        try:
            self.heart.heartbeat()
            if self.pulse is not None:
                self.pulse.tend()
        except Exception as exc:  # whatever it is, an owner without a heart is dead
            if not self._failing:
                self._wake.set()  # the connection alone may be lost: once more, on another
                logger.warning(
                    "Heartbeat of owner %s failed: %r. Retrying every %g s; other hosts take "
                    "this process for dead after %g s of silence.",
                    self.heart.facts.owner,
                    exc,
                    RETRY_INTERVAL,
                    self.heart.config.owner_ttl,
                )
            self._failing = True
        else:
            if self._failing:
                logger.info("Heartbeat of owner %s is heard again.", self.heart.facts.owner)
            self._failing = False
