"""The shop, with chords whose parts return something else at each run.

A part that returns "deadly" ends whoever collects the results of its chord, and nobody else.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from celery.backends.redis import RedisBackend
from redis.exceptions import OutOfMemoryError

from support.apps.shop import app, ledger

hold = app.tasks["shop.hold"].run


@app.task(name="choir.part", shared=False)
def part(index: int) -> list[int]:
    """Which part, and who has run it."""
    hold(f"part {index}")
    return [index, os.getpid()]


@app.task(name="choir.deadly", shared=False)
def deadly(index: int) -> str:
    ledger().started(f"part {index}")
    return "deadly"


@app.task(name="choir.refused", shared=False)
def refused() -> None:
    """It fails with what a server says that refuses for a while."""
    raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")


@app.task(name="choir.body", shared=False)
def body(results: list[Any]) -> list[Any]:
    ledger().started("body")
    return results


@app.task(name="choir.errback", shared=False)
def errback(task_id: str) -> None:
    ledger().gave_up(task_id, "errback")


unpack = RedisBackend._unpack_chord_result


def collected(self: Any, *args: Any, **kwargs: Any) -> Any:
    result = unpack(self, *args, **kwargs)
    if result == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return result


RedisBackend._unpack_chord_result = collected
app.finalize()
