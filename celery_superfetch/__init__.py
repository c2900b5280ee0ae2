"""Reliable fetch for Celery on Redis and Valkey.

>>> import celery_superfetch
>>> celery_superfetch.install(app)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .app_dead_set import DeadSet
    from .dead_job import DeadJob
    from .errors import (
        BadFilter,
        ConfigError,
        ForkedConnection,
        JobNotFound,
        PoisonPill,
        SuperfetchError,
        UnsupportedBroker,
        WrongType,
    )
    from .installation import install
    from .plain import reap, working_on
    from .recovery import Decision
    from .sentinel import SentinelTransport
    from .signals import job_killed, job_recovered, job_recovering, owner_reaped, ownership_lost
    from .transport import Transport

#: Public name -> where it lives. Looked up when first asked for, so that a producer loads the
#: transport and nothing else.
_HOMES = {
    "BadFilter": "errors",
    "ConfigError": "errors",
    "DeadJob": "dead_job",
    "DeadSet": "app_dead_set",
    "Decision": "recovery",
    "ForkedConnection": "errors",
    "JobNotFound": "errors",
    "PoisonPill": "errors",
    "SentinelTransport": "sentinel",
    "SuperfetchError": "errors",
    "Transport": "transport",
    "UnsupportedBroker": "errors",
    "WrongType": "errors",
    "install": "installation",
    "job_killed": "signals",
    "job_recovered": "signals",
    "job_recovering": "signals",
    "owner_reaped": "signals",
    "ownership_lost": "signals",
    "reap": "plain",
    "working_on": "plain",
}

__all__ = [
    "BadFilter",
    "ConfigError",
    "DeadJob",
    "DeadSet",
    "Decision",
    "ForkedConnection",
    "JobNotFound",
    "PoisonPill",
    "SentinelTransport",
    "SuperfetchError",
    "Transport",
    "UnsupportedBroker",
    "WrongType",
    "__version__",
    "install",
    "job_killed",
    "job_recovered",
    "job_recovering",
    "owner_reaped",
    "ownership_lost",
    "reap",
    "working_on",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
