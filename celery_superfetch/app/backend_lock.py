"""A lock in the database: one notice of an app at a time asks the result backend.

A *notice* (failure notification) is the job that announces a dead-lettered job. Without the lock a
result backend that hangs would occupy a pool slot for each notice, and so all slots of all workers;
with it, one slot in total. The other notices are postponed.

``announcement`` takes the lock in the run of a notice, in a worker's pool; ``notice`` asks before
a notice gets a slot. If the process dies, the server lets the lock expire after ``LOCK_EXPIRES_S``;
until then notices are postponed, and none is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import uniform

from redis.exceptions import RedisError

from ..store.database import Database

#: Seconds after which the lock expires, also if its notice still waits for the result backend: the
#: clients of some backends do not give up soon.
LOCK_EXPIRES_S = 60.0

#: Seconds for which no notice asks after one has failed. A notice that may not ask is postponed by
#: a random time between this and twice this: not all are to come at once.
BACKEND_PAUSE_S = 10

#: Seconds for which a notice waits for the lock if another notice has just taken it, and seconds
#: between two tries of that.
LOCK_WAIT_S, LOCK_RETRY_S = 0.2, 0.01


class NotNow(Exception):
    """Refusal: another notice waits for the result backend, or has failed there a moment ago."""


@contextmanager
def backend_lock(database: Database) -> Iterator[None]:
    """Hold the lock while the result backend is asked in this block. Raises NotNow if
    ``held_off``."""
    scope = _scope(database)
    # The loop ends: the lock is free, or has been held for so long that ``held_off`` is true.
    while not database.try_lock(scope, LOCK_EXPIRES_S):
        if held_off(database):
            raise NotNow
        time.sleep(LOCK_RETRY_S)
    try:
        yield
    except BaseException:
        with suppress(RedisError):
            database.unlock(scope, after=BACKEND_PAUSE_S)
        raise
    database.unlock(scope)


def held_off(database: Database) -> bool:
    """Return whether a notice has waited for an answer for more than ``LOCK_WAIT_S``, or has failed
    in the last ``BACKEND_PAUSE_S``."""
    # ``held_for_s`` subtracts what is left of the lock from its whole length. After a failure 10 s
    # are left of 60 s: it reports about 50 s, however short the work was.
    return database.held_for_s(_scope(database)) > LOCK_WAIT_S


def pause() -> float:
    """Return by how many seconds a notice is postponed that may not ask."""
    return BACKEND_PAUSE_S * uniform(1, 2)


def _scope(database: Database) -> str:
    return f"notices:{database.config.app_name}"
