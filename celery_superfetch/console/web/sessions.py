"""Sessions: browsers that have given the token, in the memory of this process."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from time import monotonic

#: Seconds after its login at which a session ends, however much it is used.
SESSION_S = 12 * 3600

#: Open sessions at a time. The oldest one ends when a browser more logs in: a program that logs in
#: for each request would fill the memory.
SESSIONS_MOST = 1000


class Sessions:
    """Sessions that are open. A restart of the process ends all."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Digest of a session's id -> when the session ends (s of the clock), the oldest first.
        #: Digests, since the time that a look-up takes may depend on what is looked up.
        self._end_by_digest: dict[bytes, float] = {}

    def begin(self) -> str:
        """Open a session and return its id, which the server alone chooses: an id that an attacker
        has planted in a browser never becomes a session."""
        session = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            for digest, end in list(self._end_by_digest.items()):
                if end > now and len(self._end_by_digest) < SESSIONS_MOST:
                    break
                del self._end_by_digest[digest]
            self._end_by_digest[_digest(session)] = now + SESSION_S
        return session

    def is_open(self, session: str) -> bool:
        """Return whether this is the id of a session that has neither ended nor been logged out."""
        with self._lock:
            return self._clock() < self._end_by_digest.get(_digest(session), float("-inf"))

    def end(self, session: str) -> None:
        """End a session, if it is one."""
        with self._lock:
            self._end_by_digest.pop(_digest(session), None)


def _digest(session: str) -> bytes:
    return hashlib.sha256(session.encode(errors="replace")).digest()
