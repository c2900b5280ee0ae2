"""The thread of the page that carries out a bulk action while browsers watch its progress.

``audit_page`` starts it, and reads it. If a browser is closed, the action continues. If this
process dies, or the server cannot be reached, the action stops after its last batch; its ids are in
Redis (``store/bulk_ids.py``), and a visitor continues it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from celery import Celery
from celery.exceptions import OperationalError
from redis.exceptions import RedisError

from ...errors import SuperfetchError
from ...inspector import COMPLETE, INTERRUPTED, AuditEntry, AuditRecord, Inspector
from ...model.log_text import one_line_each
from ..bulk import BulkAction, carry_out
from .busy import CHANGE_RUNS, Busy

logger = one_line_each(logging.getLogger(__name__))


class BulkRunner:
    """Carries out one bulk action at a time.

    Arguments:
        changed: called after each action, when jobs have changed.
    """

    def __init__(self, app: Celery, changed: Callable[[], object]) -> None:
        self._app, self._changed = app, changed
        self._lock = threading.Lock()  # held to start a thread
        self._thread: threading.Thread | None = None
        #: Record of the latest action of this process. Its thread alone replaces the entry.
        self._record: AuditRecord | None = None

    def start(
        self,
        inspector: Inspector,
        begin: Callable[[], AuditRecord],
        action: BulkAction,
        ids: Sequence[str],
    ) -> str:
        """Start a thread for an action; return the id of its audit entry. Raises Busy.

        Arguments:
            begin: makes the record of the action, or returns that of one that is continued.
        """
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise Busy(CHANGE_RUNS)
            record = self._record = begin()
            self._thread = threading.Thread(
                target=self._run,
                args=(inspector, record, action, ids),
                name=f"superfetch-{action.name.replace(' ', '-')}",
                daemon=True,
            )
            self._thread.start()
        return record.entry.id

    def entry_of(self, change: str) -> AuditEntry | None:
        """Return the entry of an action that this process carries out, or carried out last: Redis
        may be away, or may have refused it."""
        record = self._record
        return record.entry if record is not None and record.entry.id == change else None

    def _run(
        self,
        inspector: Inspector,
        record: AuditRecord,
        action: BulkAction,
        ids: Sequence[str],
    ) -> None:
        audit, change = inspector.audit, record.entry.id
        try:
            try:
                inspector.bulk_ids.store(change, ids)
            except RedisError as exc:
                logger.warning(
                    "Ids of a bulk action were not stored (change=%s): %s. If this process dies, "
                    "the action cannot be continued; repeat it then.",
                    change,
                    exc,
                )
            carry_out(self._app, inspector, record, action, ids)
        except (RedisError, SuperfetchError, OperationalError) as exc:
            logger.warning(
                "Bulk action stopped (change=%s, action=%s, jobs=%d, dealt_with=%d): %s. Its other "
                "jobs are where they were. Continue it on the page, under Audit.",
                change,
                action.name,
                len(ids),
                record.entry.dealt_with,
                exc,
            )
            audit.finish(record, INTERRUPTED, str(exc))
        except Exception as exc:
            logger.exception(
                "Bulk action failed (change=%s, action=%s, jobs=%d, dealt_with=%d): it stopped in "
                "the next batch. Fix the error below, and continue it on the page, under Audit.",
                change,
                action.name,
                len(ids),
                record.entry.dealt_with,
            )
            audit.finish(record, INTERRUPTED, type(exc).__name__)
        else:
            audit.finish(record, COMPLETE, record.entry.outcome)
            with suppress(RedisError):  # they expire
                inspector.bulk_ids.forget(change)
        finally:
            self._changed()
