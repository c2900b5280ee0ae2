"""Filters on Celery's loggers, for as long as a worker of an installed app exists in the process.

All apps of a process share Celery's loggers, so that no filter can be one app's. The bootstep adds
the filters when a worker is made, before its pool forks, and removes them when the last worker of
the process has ended, by a warm or a cold shutdown. If a worker fails while it starts, its filters
stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from ..app.reap_task import routine_lines
from ..model.log_text import filters_of_celerys_loggers

LOGGER_OF_RECEIPTS = "celery.worker.strategy"

#: The workers of this process that have not ended.
_workers: WeakSet[Any] = WeakSet()


def add_filters(worker: Any) -> None:
    """Escape names of jobs in Celery's lines, and make its lines about the reap task DEBUG."""
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
