"""Revoked jobs that are parked come at once, and the worker that claims them discards them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

from celery.utils.log import get_logger
from celery.worker.control import Panel

from ..owner.owner import Owner
from .stopping import owners_of

logger = get_logger(__name__)

TURN = 60.0  # seconds for which one worker of all that hear of it has looked


def call_revoked() -> None:
    """Have Celery's ``revoke``, which all workers hear, look at what is parked, too."""
    revoke = Panel.data["revoke"]
    if getattr(revoke, "__wrapped__", None) is None:
        Panel.data["revoke"] = _also_parked(revoke)


def _also_parked(revoke: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(revoke)
    def revoke_all(state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        done = revoke(state, task_id, *args, **kwargs)
        ids = [task_id] if isinstance(task_id, str) else [*task_id]
        for owner in owners_of(state.consumer.controller):
            # In another thread: it looks through all that are parked.
            owner.overdue.append(partial(_call, owner, ids))
        return done

    return revoke_all


def _call(owner: Owner, ids: Iterable[str]) -> None:
    mine = [id for id in ids if owner.database.take_turn(f"revoke:{id}", TURN)]
    if mine and (count := owner.recall(mine)):
        logger.info("%d revoked jobs that were due later come at once, to be discarded.", count)
