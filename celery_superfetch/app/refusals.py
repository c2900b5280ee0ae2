"""A server that refuses what a job's end needs, and will take it later: the job is not done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from celery.utils.log import get_logger
from redis.commands.core import Script

from ..model.step import running
from ..store.wire.server import is_passing

logger = get_logger(__name__)

T = TypeVar("T")

PAUSE_S = 1.0  # between two tries
PATIENCE_S = 60.0  # for which a running job waits in its slot, before it goes back to its queue


class NotSent(BaseException):
    """The end of a job could not be published, or stored. As an ``Exception`` Celery would store it
    as a failure, or end the job."""


def patiently(call: Callable[[], T], what: str) -> T:
    """Do what the result backend needs for the end of the job that runs here; while its server
    refuses that for a while (out of memory, a full disk, a replica), try again. NotSent: for too
    long. Outside a job, in a worker's main process, the error is raised at once."""
    job, began = running.get(), time.monotonic()
    while True:
        try:
            return call()
        except Exception as exc:
            if job is None or not is_passing(exc):
                raise
            trouble = f"Job {job.title} could not {what} ({exc})"
            if time.monotonic() - began > PATIENCE_S:
                raise NotSent(trouble) from exc
            logger.warning("%s: it is not done, and waits for the server.", trouble)
            time.sleep(PAUSE_S)


class PatientScript(Script):
    """A script of the end of a chord, called ``patiently``."""

    def __init__(self, text: bytes) -> None:
        nobody: Any = None  # the backend has no client yet; each call says by which
        super().__init__(nobody, text)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = super().__call__
        return patiently(lambda: call(*args, **kwargs), "end its part of a chord")
