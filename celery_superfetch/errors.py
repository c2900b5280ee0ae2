"""The few errors of this package, each written for the person who has to act on it."""

from __future__ import annotations


class SuperfetchError(Exception):
    """Base class of everything this package raises on purpose."""


class ConfigError(SuperfetchError, ValueError):
    """An option is unknown or impossible; nothing was started."""


class UnsupportedBroker(SuperfetchError):
    """The broker cannot carry the guarantee (Windows, an old or read-only server)."""


class ForkedConnection(SuperfetchError):
    """A child consumes over a connection that its parent made; nothing was claimed."""


class JobNotFound(SuperfetchError, LookupError):
    """No job with that id is in the dead set."""


class WrongType(SuperfetchError):
    """A Redis key that should hold a queue holds something else; nothing was moved."""


class StillInUse(SuperfetchError):
    """Somebody alive may hold the jobs; nothing was moved. The text names who, and what to do."""


class PoisonPill(SuperfetchError):
    """A job was killed: it used up its recoveries and now waits in the dead set.

    Stored as the job's result. Built from one string, so that every result serializer of
    Celery can give it back to the caller unchanged.
    """
