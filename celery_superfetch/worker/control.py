"""Celery's control command ``revoke``, which also recalls the jobs that are scheduled for later.

The worker's bootstep wraps the command once (``call_revoked``). If the worker dies between the
command and the recall, the job stays parked until it is due, and is discarded then by a worker
that remembers the id.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, wraps
from typing import Any

from celery.utils.log import get_logger
from celery.worker.control import Panel
from redis.exceptions import RedisError

from ..model.log_text import one_line_each
from ..owner.owner import Owner
from .stopping import owners_of

logger = one_line_each(get_logger(__name__))

TURN = 60.0  # seconds for which one worker of all that hear of a revoked job has looked for it


def call_revoked() -> None:
    """Have ``revoke`` call what is parked: it comes at once, and whoever claims it discards it."""
    revoke = Panel.data["revoke"]
    if getattr(revoke, "__wrapped__", None) is not None:
        return

    @wraps(revoke)
    def revoke_all(state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        done = revoke(state, task_id, *args, **kwargs)
        ids = [task_id] if isinstance(task_id, str) else [*task_id]
        for owner in owners_of(state.consumer.controller):
            # In another thread: it looks through all that are parked.
            owner.overdue.append(partial(_call, owner, ids))
        return done

    Panel.data["revoke"] = revoke_all


def _call(owner: Owner, ids: Iterable[str]) -> None:
    mine = [id for id in ids if owner.database.take_turn(f"revoke:{id}", TURN)]
    if mine:
        _recall(owner, mine)


def _recall(owner: Owner, mine: list[str]) -> None:
    try:
        count = owner.leases.recall(mine)
    except (RedisError, OSError):
        owner.overdue.append(partial(_recall, owner, mine))  # whose turn it is, is it once
        return
    if count:
        logger.info("%d revoked jobs that were due later come at once, to be discarded.", count)
