"""Celery's control command ``revoke``, which also recalls the jobs that are scheduled for later.

The consumer's bootstep gives the worker's mailbox its own command (``recall_revoked``): Celery's
table of commands is one for all apps of the process. If the worker dies between the command and the
recall, the job stays parked until it is due, and is discarded then by a worker that remembers the
id.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from ..model.log_text import one_line_each
from ..owner.owner import Owner
from .stopping import owners_of

logger = one_line_each(get_logger(__name__))

#: Seconds for which the lock of a revoked job keeps other workers from recalling it, too: all of
#: them get the command.
TURN = 60.0


def recall_revoked(consumer: Any) -> None:
    """Make the ``revoke`` command of one worker recall parked jobs as well: such a job comes at
    once, and the worker that claims it discards it. Commands of other workers in the process stay
    as they are; one that is registered later is a command of this worker, too."""
    for step in consumer.steps:
        node = getattr(getattr(step, "box", None), "node", None)  # ``Control``; may be switched off
        if node is None or isinstance(node.handlers, ChainMap):
            continue
        revoke = node.handlers["revoke"]
        node.handlers = ChainMap({"revoke": partial(_revoke, revoke)}, node.handlers)


def _revoke(revoke: Callable[..., Any], state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
    done = revoke(state, task_id, *args, **kwargs)
    ids = [task_id] if isinstance(task_id, str) else [*task_id]
    for owner in owners_of(state.consumer.controller):
        # A deferred call, for the maintenance thread: a recall reads all parked jobs.
        owner.overdue.append(partial(_recall_once, owner, ids))
    return done


def _recall_once(owner: Owner, ids: Iterable[str]) -> None:
    """Recall those jobs that no other worker recalls at this moment."""
    mine = [id for id in ids if owner.database.take_turn(f"revoke:{id}", TURN)]
    if mine:
        _recall(owner, mine)


def _recall(owner: Owner, mine: list[str]) -> None:
    try:
        count = owner.leases.recall(mine)
    except (RedisError, OSError):
        owner.overdue.append(partial(_recall, owner, mine))  # this worker still has the locks
        return
    if count:
        logger.info("%d revoked jobs that were due later come at once, to be discarded.", count)
