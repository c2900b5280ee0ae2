"""The signals of this package, and the values that they carry.

Reapers and workers send the signals of a recovery, an owner sends ``ownership_lost``, and the run
of a failure notification ``job_killed`` (the reaper or the worker itself, where there is no
notification). Receivers run in the thread that sends. If the process dies between an act and its
signal, the act is done and the signal is missed; a failure notification runs again.

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
    """A signal whose receivers may take locks of libraries in this package's threads: forks wait
    until they return."""

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
        """Call each receiver and return the receivers with their answers. An error of a receiver is
        logged, and is its answer; also a SystemExit, which would end the maintenance thread."""
        from .model import fork_gate  # a producer only connects receivers
        from .model.foreign import describe, loggable

        answers: list[tuple[Any, Any]] = []
        with fork_gate.kept_off():
            for receiver in self._live_receivers(sender):
                try:
                    answers.append((receiver, receiver(signal=self, sender=sender, **named)))
                except (Exception, SystemExit) as exc:
                    logger.error(
                        "Receiver %s of signal %s raised %s. The worker continues; fix the "
                        "receiver.",
                        describe(receiver),
                        self.name,
                        describe(exc),
                        exc_info=loggable(exc),
                    )
                    answers.append((receiver, exc))
        return answers


#: Sent before a job is recovered, with ``recovery``, a `Recovery`. A receiver may return a
#: `Decision`; None leaves the decision to others.
job_recovering = Signal(name="job_recovering", providing_args={"recovery"})
#: Sent when a job is back on its queue, or on probation, with ``recovery``, a `Recovery`.
job_recovered = Signal(name="job_recovered", providing_args={"recovery"})
#: Sent when a job is in the dead set, with ``job``, a `DeadJob`.
job_killed = Signal(name="job_killed", providing_args={"job"})
#: Sent when the jobs of a dead owner were recovered, with ``reaped``, a `ReapedOwner`.
owner_reaped = Signal(name="owner_reaped", providing_args={"reaped"})
#: Sent when this process has lost the ownership of a job, with ``lost``, a `LostJob`. The job may
#: run twice.
ownership_lost = Signal(name="ownership_lost", providing_args={"lost"})


class ReapedOwner(NamedTuple):
    """A dead owner whose jobs were recovered, for ``owner_reaped``."""

    owner: str  #: ``host|pid|nonce``
    host: str  #: host name of its process
    pid: int  #: process id on that host
    #: Name of its Celery app; empty if the app has no name, or for a kombu consumer that is no
    #: Celery worker.
    app_name: str
    reason: str  #: why it was declared dead
    recovered: int  #: number of jobs that were recovered: to their queues, or on probation
    killed: int  #: number of jobs that were moved to the dead set


class LostJob(NamedTuple):
    """A job that this process has claimed and no longer owns, for ``ownership_lost``."""

    owner: str  #: the owner that had claimed it, as ``host|pid|nonce``
    queue_list: str  #: the queue list it came from
    payload: bytes  #: the message, as its producer sent it
    task: str | None  #: name of its task; None if the payload does not say
    task_id: str | None  #: Celery's id of the task; None if the payload does not say
