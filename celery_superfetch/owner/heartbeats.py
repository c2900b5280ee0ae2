"""The heart's thread. Under gevent it is a greenlet, which a task that does not yield stops: it
connects, as redis-py knows how, for a native thread, which goes on, but may touch none of gevent's
locks and sockets, and so only writes and reads bytes there."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ..model import forks
from ..model.facts import HUNG, RETRY_INTERVAL
from ..model.log_text import one_line_each
from .heart import Heart

logger = one_line_each(logging.getLogger(__name__))

WARM_INTERVAL = RETRY_INTERVAL  # seconds between two uses that keep a connection from being idle
REPLY_SIZE = 65536  # bytes read of a reply; what an error says is the heart's to meet and to report

T = TypeVar("T")


def threads_are_greenlets() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class Heartbeats(threading.Thread):
    """Sends heartbeats until its owner has left, whatever else the process is busy with."""

    def __init__(self, heart: Heart) -> None:
        super().__init__(name="superfetch-heartbeat", daemon=True)
        self.heart = heart
        self.stopped = False  # set, it sends no more; nobody waits for what is under way
        self.pulse = Pulse(self) if threads_are_greenlets() else None
        self._asked: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Event()
        heart.home.wake = self._wake.set
        self._failing = False

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
        forks.mark_thread()
        heart, interval = self.heart, self.heart.config.heartbeat_interval
        due = monotonic() + interval
        # Short waits: a signal handler can set a flag, but must not touch this thread's lock.
        while not self.stopped:
            left = due - monotonic() if heart.state != HUNG else RETRY_INTERVAL
            self._wake.wait(max(0.0, min(RETRY_INTERVAL, interval, left)))
            self._wake.clear()
            if self.pulse is None:
                heart.watch_loop()
            while self._asked and not self.stopped:
                self._act(*self._asked.popleft())
            late, news = self._failing or monotonic() >= due, heart.state != heart.facts.state
            late |= heart.home.contested
            # One whose loop hangs says so once, and nothing more.
            if not self.stopped and (news or (late and heart.state != HUNG)):
                due = monotonic() + interval
                self._heartbeat()

    def _act(self, act: Callable[[], Any], answer: Future[Any]) -> None:
        try:
            said = act()
        except BaseException as exc:  # it is for whoever asked
            answer.set_exception(exc)
        else:
            if not self.heart.facts.owner:  # those were its last words
                self.stopped = True
            answer.set_result(said)

    def _heartbeat(self) -> None:
        try:
            self.heart.heartbeat()
            if self.pulse is not None:
                self.pulse.tend()
        except Exception as exc:  # whatever it is, an owner without a heart is dead
            if self._failing:
                return
            self._failing = True
            self._wake.set()  # the connection alone may be lost: once more, on another
            logger.warning(
                "Heartbeat of owner %s failed: %r. Retrying every %g s; other hosts take this "
                "process for dead after %g s of silence.",
                self.heart.facts.owner,
                exc,
                RETRY_INTERVAL,
                self.heart.config.owner_ttl,
            )
        else:
            if self._failing:
                logger.info("Heartbeat of owner %s is heard again.", self.heart.facts.owner)
            self._failing = False


class Pulse:
    """What says that an owner lives while the hub is blocked: under gevent alone it has one."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        original = sys.modules["gevent.monkey"].get_original
        self._heartbeats, self._heart = heartbeats, heartbeats.heart
        self._connection: Any = None  # redis-py's, connected; nobody else uses it
        self._sleep = original("time", "sleep")
        with suppress(RedisError):  # the heart reports it, and tries again
            self.tend()
        original("_thread", "start_new_thread")(self._run, ())

    def tend(self) -> None:
        if self._connection is None:
            self._connection = self._heart.connect(self._heart.params).connection

    def _run(self) -> None:
        """The native thread: takes no lock, imports and logs nothing, and closes what it used."""
        said, due, interval = "", 0.0, self._heart.config.heartbeat_interval
        while not self._heartbeats.stopped:
            self._heart.watch_loop()
            state = self._heart.state
            late = monotonic() >= due and state != HUNG
            if self._connection is not None and (late or state != said):
                due = monotonic() + interval
                try:
                    self._say(self._heart.pulse(state))
                    said = state
                except OSError:
                    self._close()
                    # A server that closes idle connections would close the next one, too, before
                    # this owner is heard again; while the hub is blocked none can be opened.
                    interval = min(interval, WARM_INTERVAL)
            self._sleep(min(RETRY_INTERVAL, interval))
        if self._connection is not None:
            self._close()

    def _say(self, command: bytes) -> None:
        """Send a command and wait for its reply: OSError if it is late, or none, or says no."""
        gevents = self._connection._sock
        native, tls = gevents._sock, getattr(gevents, "_sslobj", None)
        native.settimeout(self._connection.socket_timeout)
        (tls.write if tls else native.sendall)(command)
        reply = (tls.read if tls else native.recv)(REPLY_SIZE)
        if not reply or reply.startswith(b"-"):
            raise ConnectionResetError

    def _close(self) -> None:
        self._connection._sock._sock.close()
        self._connection = None
