"""What a run of a job came to, from the code that ran it to the callbacks that settle it.

A task may raise an exception that cannot be printed, compared, pickled or unpickled. Celery and
this package do all of that when they settle the job; if it fails there, the job keeps its slot, or
ends its worker. So each exception is tried where the job ran, and one that fails the trial is
replaced by a plain one of Celery's or Python's own.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from billiard import common
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate
from celery.utils.serialization import UnpickleableExceptionWrapper

from ..model.foreign import class_name, describe, loggable, message_of

#: Exceptions that a pool raises for a run that was cut short. From a task they are data as any
#: other, and come from the result of another job as a rule: Celery would requeue it for ever.
OF_POOLS = (TimeLimitExceeded, WorkerLostError, Terminated, MemoryError)

#: Exceptions that end the process of a pool.
ENDING = (SystemExit, KeyboardInterrupt, WorkerShutdown, WorkerTerminate)


class TooLate:
    """Outcome of a job that came too late to its process, and has not begun. What a task raises or
    returns reaches the pool in a tuple of Celery's, so no task can make its run look like this."""


class Packed(NamedTuple):
    """An ``ExceptionInfo`` on its way from a pool process to its worker."""

    pickled: bytes  # empty where the pool process cannot pickle it
    plain: Exception  # stands for it where the worker cannot unpickle it
    traceback: str

    @classmethod
    def of(cls, info: Any) -> Packed:
        """Pack what a run raised; never raises."""
        error = exception_of(info)
        try:
            pickled = pickle.dumps(info) if _may_be_reported(error) else b""
        except BaseException:  # whatever a ``__reduce__`` raises
            pickled = b""
        return cls(pickled, plain(error), info.traceback or "")

    def unpack(self) -> Any:
        """Return the ``ExceptionInfo``, with the plain exception if need be; never raises."""
        if self.pickled:
            try:
                info = pickle.loads(self.pickled)
                # Its text was tried where it was raised: here that may be a query of a model's.
                if _is_failure(exception_of(info)):
                    return info
            except BaseException:  # its module may be importable in the pool process alone
                pass
        return info_of(self.plain, self.traceback)


class Escaped(NamedTuple):
    """Outcome of a job around whose body Celery's own code raised, or which raised what Celery lets
    pass: neither an ``Exception`` nor the end of its process."""

    packed: Packed


def run_and_pack(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job in a pool process; what it returns or raises can be unpickled by any worker."""
    try:
        outcome = run(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        if type(error) in ENDING and is_harmless(error):
            raise
        sys.exit(message_of(error))  # billiard's, which sends the latest status of any exit
    except BaseException as error:
        if _told_to_end():  # the job was cut short, and what it raised then is no outcome
            raise
        return Escaped(Packed.of(info_of(error)))
    if (failed := failure_of(outcome)) is not None:
        return (outcome[0], Packed.of(failed), *outcome[2:])
    return outcome


def run_and_check(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job in the worker's own process; what it returns or raises can be settled."""
    try:
        outcome = run(*args, **kwargs)
    except BaseException as error:
        if is_harmless(error):
            raise
        ends = not issubclass(type(error), Exception)
        substitute = SystemExit(message_of(error)) if ends else plain(error)
        raise substitute.with_traceback(_traceback_of(error)) from None
    failed = failure_of(outcome)
    if failed is None or _may_be_reported(exception_of(failed)):
        return outcome
    info = info_of(plain(exception_of(failed)), failed.traceback or "")
    return (outcome[0], info, *outcome[2:])


def _told_to_end() -> bool:
    """Return whether this pool process handles a signal to end; billiard says so since 4.3."""
    fired = getattr(common, "terminate_handler_fired", None)
    return bool(fired and fired())


def failure_of(outcome: Any) -> Any:
    """Return the ``ExceptionInfo`` in an outcome of Celery's tracer; None if the job succeeded."""
    is_traced = isinstance(outcome, tuple) and len(outcome) == 3
    return outcome[1] if is_traced and isinstance(outcome[1], ExceptionInfo) else None


def exception_of(info: Any) -> BaseException:
    """Return what was raised, without the wrapper that billiard puts around it."""
    error: Any = info.exception
    # By its class: an attribute ``exc``, which the wrapper has, may be the exception's own.
    raised: BaseException = error.exc if type(error) is ExceptionWithTraceback else error
    return raised


def info_of(error: BaseException, traceback: str = "") -> Any:
    """Return the ``ExceptionInfo`` of an exception, or of the plain one in its place; never raises.

    Arguments:
        traceback: the text of its traceback, where that was formatted before.
    """
    raised = error if is_harmless(error) else plain(error)
    info = ExceptionInfo((type(raised), raised, _traceback_of(error) or _any_traceback()))
    info.traceback = traceback or info.traceback
    return info


def _traceback_of(error: BaseException) -> TracebackType | None:
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def _any_traceback() -> TracebackType | None:
    """Return a traceback, without which billiard makes no ``ExceptionInfo``."""
    try:
        raise RuntimeError
    except RuntimeError as error:
        return error.__traceback__


def is_harmless(error: BaseException) -> bool:
    """Return whether an exception survives what Celery and this package do with it."""
    try:
        texts = str(error), repr(error)
        bool(error)
        honest = loggable(error) is error and error.__class__ is type(error)
        honest = honest and isinstance(error.args, tuple)
        if isinstance(error, Reject):
            bool(error.requeue)
        elif isinstance(error, Retry) and error.exc is not None:
            honest = honest and is_harmless(error.exc)
        elif isinstance(error, SystemExit):
            honest = honest and (error.code is None or type(error.code) in (int, str))
        elif isinstance(error, ExceptionWithTraceback):
            honest = False  # a task's own: what is in it would take its place when it is unpickled
        return honest and all(type(text) is str for text in texts)
    except BaseException:  # whatever an object of the user raises
        return False


def _may_be_reported(error: BaseException) -> bool:
    """Return whether Celery may get the failure of a task as it is. A ``SystemExit`` is none, but
    comes out of billiard's wrapper if a task raises that: Celery would raise it in the worker."""
    return _is_failure(error) and is_harmless(error)


def _is_failure(error: BaseException) -> bool:
    kind = type(error)
    return issubclass(kind, Exception) and not issubclass(kind, OF_POOLS)


def plain(error: BaseException) -> Exception:
    """Return an exception of Celery's or Python's own that says the same, and by which Celery
    decides the same; never raises."""
    kind, text = type(error), message_of(error)
    if issubclass(kind, Reject):
        reason = message_of(_attribute(error, "reason"))
        return Reject(reason, requeue=_is_true(_attribute(error, "requeue")))
    for semipredicate in (Ignore, Retry):
        if issubclass(kind, semipredicate):
            return semipredicate(text)
    module = _attribute(kind, "__module__")
    module = str.__str__(module) if isinstance(module, str) else ""
    return UnpickleableExceptionWrapper(module, class_name(error), (text,), text)


def _attribute(value: object, name: str) -> Any:
    try:
        return getattr(value, name)
    except BaseException as error:
        return f"<{name}, which raises {describe(type(error))}>"


def _is_true(value: object) -> bool:
    try:
        return bool(value)
    except BaseException:
        return False
