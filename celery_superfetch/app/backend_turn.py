"""Of an app's notices one at a time asks the result backend: where that hangs, one slot of the
fleet hangs with it. The others are told to wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import uniform

from redis.exceptions import RedisError

from ..store.database import Database

#: Seconds for which no notice asks while another has no answer yet: not all clients give up soon.
HELD_OFF = 60.0

#: Seconds for which none asks after one that failed. So long, and up to twice as long by chance, a
#: notice waits that may not ask: not all are to come at once.
PAUSE = 10

#: Seconds for which a notice waits for another that has just asked, and between two looks.
PATIENCE, STEP = 0.2, 0.01


class NotNow(Exception): ...


@contextmanager
def backend_turn(database: Database) -> Iterator[None]:
    """Around a question to the result backend. Raises NotNow where another gets no answer."""
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
    """Whether one asks, or has lately asked, in vain."""
    return database.lasts(_scope(database)) > PATIENCE


def pause() -> float:
    """Seconds."""
    return PAUSE * uniform(1, 2)


def _scope(database: Database) -> str:
    return f"notices:{database.config.app_name}"
