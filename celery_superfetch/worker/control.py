"""Lets Celery's control command ``revoke`` reach jobs that are *parked*: they wait in Redis for
their ETA, and in no worker's memory.

A worker that gets the command *recalls* such a job: the job moves to its queue at once, and the
worker that claims it discards it, as Celery does with each revoked job. The consumer's bootstep
(``bootsteps.Guarded``) calls ``recall_revoked``, which installs the handler in the mailbox of one
worker, since Celery's table of handlers is shared by all apps of the process.

If the worker dies between the command and the recall, the job stays parked until it is due. The
worker that claims it then discards it if it remembers the id. If no worker does, the job runs, as
in stock Celery.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from ..model.log_text import one_line_each
from ..owner.owner import Owner
from .stopping import owners_of

logger = one_line_each(get_logger(__name__))

#: Seconds for which a worker holds the lock of a job that it recalls. All workers get the command,
#: and one recall is enough.
RECALL_LOCK_S = 60.0


def recall_revoked(consumer: Any) -> None:
    """Install a handler of ``revoke`` in one worker's mailbox that also recalls parked jobs. The
    mailboxes of other workers in the process stay as they are. The worker still has all other
    commands of Celery's table, also those that are registered later."""
    for step in consumer.steps:
        node = getattr(getattr(step, "box", None), "node", None)  # ``Control``; may be switched off
        if node is None or isinstance(node.handlers, ChainMap):  # or it was installed before
            continue
        revoke = node.handlers["revoke"]
        node.handlers = ChainMap({"revoke": partial(_revoke, revoke)}, node.handlers)


def _revoke(revoke: Callable[..., Any], state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
    done = revoke(state, task_id, *args, **kwargs)
    ids = [task_id] if isinstance(task_id, str) else [*task_id]
    for owner in owners_of(state.consumer.controller):
        # A deferred call, for the maintenance thread: a recall reads all parked jobs.
        owner.deferred_calls.append(partial(_recall_once, owner, ids))
    return done


def _recall_once(owner: Owner, ids: list[str]) -> None:
    """Recall the jobs whose locks no other worker has taken."""
    try:
        locked_ids = [id for id in ids if owner.database.try_lock(f"revoke:{id}", RECALL_LOCK_S)]
    except (RedisError, OSError):
        # This worker may have some of the locks, and other workers skip these jobs: if it tried
        # again, it would skip them, too. A second recall of a job does no harm.
        locked_ids = ids
    if locked_ids:
        _recall(owner, locked_ids)


def _recall(owner: Owner, locked_ids: list[str]) -> None:
    try:
        count = owner.leases.recall(locked_ids)
    except (RedisError, OSError):
        # others have skipped these jobs
        owner.deferred_calls.append(partial(_recall, owner, locked_ids))
        return
    if count:
        logger.info(
            "Revoked jobs that were scheduled for later are fetched now, to be discarded "
            "(jobs=%d).",
            count,
        )
