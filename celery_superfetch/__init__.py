"""Reliable fetch for Celery on Redis and Valkey.

>>> import celery_superfetch
>>> celery_superfetch.install(app)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app.dead_set import DeadSet as DeadSet
    from .app.dead_set import Retried as Retried
    from .app.installation import install as install
    from .app.slot_results import RedisBackend as RedisBackend
    from .errors import BadFilter as BadFilter
    from .errors import ConfigError as ConfigError
    from .errors import ForkedConnection as ForkedConnection
    from .errors import JobNotFound as JobNotFound
    from .errors import NotWhole as NotWhole
    from .errors import PoisonPill as PoisonPill
    from .errors import StillInUse as StillInUse
    from .errors import SuperfetchError as SuperfetchError
    from .errors import UnsupportedBroker as UnsupportedBroker
    from .errors import UnsupportedVersion as UnsupportedVersion
    from .errors import WrongType as WrongType
    from .model.dead_job import DeadJob as DeadJob
    from .model.strikes import Decision as Decision
    from .model.strikes import Recovery as Recovery
    from .model.version import __version__ as __version__
    from .signals import LostJob as LostJob
    from .signals import ReapedOwner as ReapedOwner
    from .signals import job_killed as job_killed
    from .signals import job_recovered as job_recovered
    from .signals import job_recovering as job_recovering
    from .signals import owner_reaped as owner_reaped
    from .signals import ownership_lost as ownership_lost
    from .transport.transport import SentinelTransport as SentinelTransport
    from .transport.transport import Transport as Transport

#: Public name -> its module, loaded at the name's first use: a producer loads the transport alone.
_HOMES = {
    name: home
    for home, names in {
        "app.dead_set": "DeadSet Retried",
        "model.dead_job": "DeadJob",
        "errors": "BadFilter ConfigError ForkedConnection JobNotFound NotWhole PoisonPill "
        "StillInUse SuperfetchError UnsupportedBroker UnsupportedVersion WrongType",
        "app.installation": "install",
        "app.slot_results": "RedisBackend",
        "model.strikes": "Decision Recovery",
        "model.version": "__version__",
        "signals": "LostJob ReapedOwner job_killed job_recovered job_recovering owner_reaped "
        "ownership_lost",
        "transport.transport": "SentinelTransport Transport",
    }.items()
    for name in names.split()
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
