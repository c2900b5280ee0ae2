"""Lets one notice of an app at a time ask the result backend. If the backend hangs, one slot of all
workers hangs with it, and the other notices are postponed.

``announcement`` takes the lock in the run of a notice, in a worker's pool; ``notice`` asks before
one gets a slot. If the process dies, the lock expires after ``HELD_OFF`` s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import uniform

from redis.exceptions import RedisError

from ..store.database import Database

#: Most seconds for which no other notice asks while one waits for its answer: some result backends'
#: clients do not give up soon.
HELD_OFF = 60.0

#: Seconds for which no notice asks after one has failed. A notice that may not ask is postponed by
#: so many seconds, or by chance up to twice as many: not all are to come at once.
PAUSE = 10

#: Seconds for which a notice waits for the lock if another has just taken it, and between two
#: tries.
PATIENCE, STEP = 0.2, 0.01


class NotNow(Exception):
    """Refusal: another notice waits for an answer, or got none."""


@contextmanager
def backend_turn(database: Database) -> Iterator[None]:
    """Hold the lock while the result backend is asked in this block. Raises NotNow if
    ``held_off``."""
    scope = _scope(database)
    while not database.take_turn(scope, HELD_OFF):
        if held_off(database):
            raise NotNow
        time.sleep(STEP)
    try:
        yield
    except BaseException:
        with suppress(RedisError):
            database.end_turn(scope, after=PAUSE)
        raise
    database.end_turn(scope)


def held_off(database: Database) -> bool:
    """Return whether a notice has waited for an answer for more than ``PATIENCE`` s, or has failed
    in the last ``PAUSE`` s."""
    return database.lasts(_scope(database)) > PATIENCE


def pause() -> float:
    """Return by how many seconds a notice is postponed that may not ask."""
    return PAUSE * uniform(1, 2)


def _scope(database: Database) -> str:
    return f"notices:{database.config.app_name}"
