"""Signals of this package, and what they bring."""

from __future__ import annotations

from typing import Any, NamedTuple

from celery.utils import dispatch


class Signal(dispatch.Signal):
    """One whose receivers may do what they like in any thread of ours: no fork meets them."""

    def send(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        from .model import forks  # a producer only connects receivers

        with forks.kept_off():
            return list(super().send(sender, **named))


#: Before a job is recovered: a receiver may return a ``Decision``. ``recovery=Recovery``.
job_recovering = Signal(name="job_recovering", providing_args={"recovery"})
#: A job is back on its queue, or on probation. ``recovery=Recovery``.
job_recovered = Signal(name="job_recovered", providing_args={"recovery"})
#: A job is in the dead set. ``job=DeadJob``.
job_killed = Signal(name="job_killed", providing_args={"job"})
#: A dead owner's private lists were given back. ``reaped=ReapedOwner``.
owner_reaped = Signal(name="owner_reaped", providing_args={"reaped"})
#: A job was taken away from us and may run twice. ``lost=LostJob``.
ownership_lost = Signal(name="ownership_lost", providing_args={"lost"})


class ReapedOwner(NamedTuple):
    """What ``owner_reaped`` tells: an owner was dead, and its jobs were taken back."""

    owner: str
    host: str
    pid: int
    app_name: str  # name of its Celery app; empty outside Celery
    reason: str  # why it was taken for dead
    recovered: int
    killed: int


class LostJob(NamedTuple):
    """What ``ownership_lost`` tells: a job that was claimed here is another's by now."""

    owner: str  # who had claimed it
    queue_list: str
    payload: bytes
    task: str | None  # Celery's names for it; None where the payload does not say
    task_id: str | None
