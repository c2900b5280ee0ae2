"""Filters on Celery's loggers, for as long as the process has a worker of an app with
``install()``.

All apps of a process share Celery's loggers, and so all workers of a process share the filters.
``bootsteps.Maintenance`` calls ``add_filters`` when a worker is made, before its pool forks, and
``remove_filters`` when the worker has ended, by a warm or a cold shutdown; the last worker of the
process removes the filters. If a worker fails while it starts, the filters stay. They are in memory
and affect log lines alone, so a death loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from ..app.reap_task import routine_lines
from ..model.log_text import filters_of_celerys_loggers

LOGGER_OF_RECEIPTS = "celery.worker.strategy"  # writes "Task ... received"

#: The workers of this process that have not ended.
_workers: WeakSet[Any] = WeakSet()


def add_filters(worker: Any) -> None:
    """Escape line breaks in the names of jobs that Celery logs, and make Celery's lines about the
    reap task DEBUG. A filter that a logger has already is not added again."""
    _workers.add(worker)
    for name, added in _filters():
        logging.getLogger(name).addFilter(added)


def remove_filters(worker: Any) -> None:
    """Remove the filters if ``worker`` is the last one of this process."""
    _workers.discard(worker)
    if not _workers:
        for name, added in _filters():
            logging.getLogger(name).removeFilter(added)


def _filters() -> Iterator[tuple[str, logging.Filter]]:
    yield from filters_of_celerys_loggers()
    yield LOGGER_OF_RECEIPTS, routine_lines
