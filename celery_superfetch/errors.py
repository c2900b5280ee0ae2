"""The few errors of this package, each written for the person who has to act on it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any


class SuperfetchError(Exception):
    """Base class of everything this package raises on purpose."""


class ConfigError(SuperfetchError, ValueError):
    """An option is misspelt or impossible; nothing was started."""


class UnsupportedBroker(SuperfetchError):
    """The broker cannot carry the guarantee (Windows, an old or read-only server)."""


class UnsupportedVersion(SuperfetchError):
    """Celery, kombu, billiard or redis-py has a version not tested here; nothing was claimed."""


class ForkedConnection(SuperfetchError):
    """A child consumes over a connection that its parent made; nothing was claimed."""


class JobNotFound(SuperfetchError, LookupError):
    """No job with that id is in the dead set."""


class NotWhole(SuperfetchError):
    """Only the head of a dead job's message was kept; it was not put back."""


class BadFilter(SuperfetchError, ValueError):
    """The conditions on jobs of the dead set make no sense; nothing was looked for."""


class WrongType(SuperfetchError):
    """A Redis key that should hold a queue holds something else; nothing was moved."""


class StillInUse(SuperfetchError):
    """Somebody alive may hold the jobs; nothing was moved. The text names who, and what to do."""


class PoisonPill(SuperfetchError):
    """A job was killed, and is in the dead set. This is stored as its result, so
    ``AsyncResult.get()`` raises it."""

    # Celery looks for the class of a stored error among the modules that are loaded: with this name
    # it finds it wherever this package is imported, before anything of it was used.
    __module__ = "celery_superfetch"

    # Its arguments are a sentence and a mapping of plain values, so that every result serializer
    # of Celery gives it back whole.
    def __init__(self, text: str = "", facts: Mapping[str, Any] | None = None) -> None:
        told = dict(facts or {})
        super().__init__(text, told)
        self.reason = str(told.get("reason", ""))  #: Why its last owner lost it.
        #: How many of its recoveries may have been its own fault.
        self.strikes = int(told.get("strikes", 0))
        #: How often its run was cut short, its death included.
        self.recoveries = int(told.get("recoveries", 0))
        #: Who lost it each time, oldest first, as ``host|pid|nonce``.
        self.owners: tuple[str, ...] = tuple(told.get("owners", ()))
        self.hosts = tuple(owner.partition("|")[0] for owner in self.owners)  #: Their host names.
        #: When (server time, UTC), one for each of ``owners``; None where nobody noted it.
        self.times = tuple(
            None if at is None else datetime.fromtimestamp(at, timezone.utc)
            for at in told.get("times", ())
        )
        self.dead_id = str(told.get("dead_id", ""))  #: Its id in the dead set.

    def __str__(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"
