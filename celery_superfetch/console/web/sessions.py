"""Sessions: browsers that have sent the token. ``access`` opens, checks and ends them.

They are in this process's memory: if it ends, each browser has to log in again.
"""

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
        #: Digest of a session's id -> when the session ends (s of the clock), and the name of its
        #: token; the oldest first. Digests, since the time that a look-up takes may depend on what
        #: is looked up.
        self._open_by_digest: dict[bytes, tuple[float, str]] = {}

    def begin(self, name: str = "") -> str:
        """Open a session and return its id, which the server alone chooses: an id that an attacker
        has planted in a browser never becomes a session. ``name``: of the token."""
        session = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            for digest, (end, _) in list(self._open_by_digest.items()):
                if end > now and len(self._open_by_digest) < SESSIONS_MOST:
                    break
                del self._open_by_digest[digest]
            self._open_by_digest[_digest(session)] = now + SESSION_S, name
        return session

    def is_open(self, session: str) -> bool:
        """Return whether this is the id of a session that has neither ended nor been logged out."""
        return self.name_of(session) is not None

    def name_of(self, session: str) -> str | None:
        """Return the name of the token of an open session; None if it is not open."""
        with self._lock:
            end, name = self._open_by_digest.get(_digest(session), (float("-inf"), ""))
            return name if self._clock() < end else None

    def end(self, session: str) -> None:
        """End a session, if it is one."""
        with self._lock:
            self._open_by_digest.pop(_digest(session), None)


def _digest(session: str) -> bytes:
    return hashlib.sha256(session.encode(errors="replace")).digest()
