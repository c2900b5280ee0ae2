"""The errors of this package, each written for the person who has to act on it.

Most rooms raise them. A worker stores ``PoisonPill`` as the result of a dead-lettered job.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any


class SuperfetchError(Exception):
    """Base class of everything this package raises on purpose."""


class ConfigError(SuperfetchError, ValueError):
    """An option is misspelt or impossible, or ``install`` came too late; nothing was started."""


class UnsupportedBroker(SuperfetchError):
    """The broker or the platform cannot be used. For example, the broker is not Redis, the server
    is too old, or the platform is Windows."""


class UnsupportedVersion(SuperfetchError):
    """An untested version of Celery, kombu, billiard or redis-py; nothing was claimed."""


class ForkedConnection(SuperfetchError):
    """A forked process consumes over a connection that its parent made; nothing was claimed."""


class JobNotFound(SuperfetchError, LookupError):
    """The dead set has no such job, or more than one; or another process is retrying it."""


class NotWhole(SuperfetchError):
    """Only the first bytes of a dead job's message were kept; it was not put back."""


class BadFilter(SuperfetchError, ValueError):
    """The conditions of a search make no sense; nothing was searched."""


class BadQueue(SuperfetchError, ValueError):
    """A queue cannot be paused: nothing names it, or no queue can have that name, or too many are
    paused. Nothing was changed."""


class WrongType(SuperfetchError):
    """A Redis key that should hold a queue holds something else; nothing was moved."""


class StillInUse(SuperfetchError):
    """A live worker may hold the jobs of a ``migrate`` or ``rollback``; nothing was moved. The text
    names that worker and says what to do."""


class PoisonPill(SuperfetchError):
    """Error of a job that was moved to the dead set. It is stored as the job's result, so
    ``AsyncResult.get()`` raises it."""

    # Celery looks up the class of a stored error in a loaded module. It finds this one in each
    # process that imports this package, also before ``errors`` was imported.
    __module__ = "celery_superfetch"

    # Its arguments are a sentence and a mapping of plain values, so that every result serializer
    # of Celery gives it back whole.
    def __init__(self, text: str = "", facts: Mapping[str, Any] | None = None) -> None:
        fields = dict(facts or {})
        super().__init__(text, fields)
        self.reason = str(fields.get("reason", ""))  #: Reason for its move to the dead set.
        #: Number of its strikes: lost runs for which the job itself may be to blame.
        self.strikes = int(fields.get("strikes", 0))
        #: Number of times that an owner lost it, the last one included.
        self.recoveries = int(fields.get("recoveries", 0))
        #: Its owners that lost it, oldest first, each as ``host|pid|nonce``.
        self.owners: tuple[str, ...] = tuple(fields.get("owners", ()))
        self.hosts = tuple(owner.partition("|")[0] for owner in self.owners)  #: Their host names.
        #: When each of ``owners`` lost it (server time, UTC); None: not recorded.
        self.times = tuple(
            None if at is None else datetime.fromtimestamp(at, timezone.utc)
            for at in fields.get("times", ())
        )
        self.dead_id = str(fields.get("dead_id", ""))  #: Its id in the dead set.

    def __str__(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"
