"""Signals of this package, and what they bring.

Foreign names:

celery utils.
    call receivers that may exit: dispatch.signal:Signal._live_receivers(sender)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, overload

from celery.utils import dispatch
from celery.utils.log import get_logger

from .model.log_text import one_line_each

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = one_line_each(get_logger(__name__))

Receiver = TypeVar("Receiver", bound=Callable[..., Any])


class Signal(dispatch.Signal):
    """One whose receivers may do what they like in any thread of ours: no fork meets them."""

    if TYPE_CHECKING:  # Celery's, with the types that it has not

        class How(TypedDict, total=False):
            weak: bool
            dispatch_uid: object
            retry: bool

        @overload
        def connect(
            self, receiver: Receiver, /, sender: object = None, **how: Unpack[How]
        ) -> Receiver: ...

        @overload
        def connect(
            self, /, *, sender: object = None, **how: Unpack[How]
        ) -> Callable[[Receiver], Receiver]: ...

        def connect(self, *args: Any, **kwargs: Any) -> Any: ...

        def disconnect(
            self,
            receiver: Callable[..., Any] | None = None,
            sender: object = None,
            *,
            dispatch_uid: object = None,
        ) -> bool: ...

    def send(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Call each receiver; what one raises is logged, and its answer. Also a SystemExit: it
        would end the thread that looks for dead owners."""
        from .model import forks  # a producer only connects receivers
        from .model.foreign import describe, loggable

        answers: list[tuple[Any, Any]] = []
        with forks.kept_off():
            for receiver in self._live_receivers(sender):
                try:
                    answers.append((receiver, receiver(signal=self, sender=sender, **named)))
                except (Exception, SystemExit) as exc:
                    logger.error(
                        "Receiver %s of signal %s raised %s. The worker goes on; fix the receiver.",
                        describe(receiver),
                        self.name,
                        describe(exc),
                        exc_info=loggable(exc),
                    )
                    answers.append((receiver, exc))
        return answers


#: Sent before a job is recovered, with ``recovery``, a `Recovery`. A receiver may return a
#: `Decision`; with None it has no say.
job_recovering = Signal(name="job_recovering", providing_args={"recovery"})
#: Sent when a job is back on its queue, or on probation, with ``recovery``, a `Recovery`.
job_recovered = Signal(name="job_recovered", providing_args={"recovery"})
#: Sent when a job is in the dead set, with ``job``, a `DeadJob`.
job_killed = Signal(name="job_killed", providing_args={"job"})
#: Sent when the jobs of a dead owner were taken back, with ``reaped``, a `ReapedOwner`.
owner_reaped = Signal(name="owner_reaped", providing_args={"reaped"})
#: Sent when a job was taken away from this process, with ``lost``, a `LostJob`. It may run twice.
ownership_lost = Signal(name="ownership_lost", providing_args={"lost"})


class ReapedOwner(NamedTuple):
    """What ``owner_reaped`` tells: an owner was dead, and its jobs were taken back."""

    owner: str  #: ``host|pid|nonce``
    host: str  #: host name of its process
    pid: int  #: process id on that host
    app_name: str  #: name of its Celery app; empty outside Celery
    reason: str  #: why it was taken for dead
    recovered: int  #: how many jobs went back to their queues, or on probation
    killed: int  #: how many jobs went to the dead set


class LostJob(NamedTuple):
    """What ``ownership_lost`` tells: a job that was claimed here is another's by now."""

    owner: str  #: who had claimed it, as ``host|pid|nonce``
    queue_list: str  #: the queue list it came from
    payload: bytes  #: the message, as its producer sent it
    task: str | None  #: name of its task; None if the payload does not say
    task_id: str | None  #: Celery's id of the task; None if the payload does not say
