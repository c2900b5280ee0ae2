"""The outcome of a run of a job, on its way from the code that ran it to the callbacks that settle
the job (ack it, requeue it, or let it fail).

A task may raise an exception that cannot be printed, compared, pickled or unpickled. Celery and
this package do all of that when they settle the job. If it failed there, the job would keep its
slot for ever, or end its worker. So each exception is tested where the job ran, and one that fails
the test is replaced by a plain exception of Celery's or Python's own.

``pool_adapter`` gives the pool the function to call: ``run_and_pack`` in a pool process, or
``run_and_check`` in a thread, a greenlet or a solo pool. ``LeasedRequest`` (``request.py``) reads
in the worker what they return. An outcome is not stored anywhere. If a pool process dies before its
outcome is read, the worker recovers the job, with a strike; if the worker dies before the job is
settled, a reaper does. With early ack the job was settled as it began, and does not run again.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

billiard
    know that a process was told to end: common:terminate_handler_fired()>=4.3
celery utils.
    replace what cannot be pickled: serialization:UnpickleableExceptionWrapper(mod,name,args,text)
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

#: Exceptions by which a pool reports that a run was cut short, and those that Celery treats alike.
#: A task may raise one, too, mostly when it gets the result of another job (``.get()``). If Celery
#: got that unchanged, it would requeue the job for ever; a MemoryError it would raise in the
#: worker.
OF_POOLS = (TimeLimitExceeded, WorkerLostError, Terminated, MemoryError)

#: Exceptions that end the process of a pool.
ENDING = (SystemExit, KeyboardInterrupt, WorkerShutdown, WorkerTerminate)


class TooLate:
    """Outcome of a job that reached its pool process after its deadline, and was not started. No
    task can return it: what a task returns or raises is within a tuple of Celery's tracer."""


class Packed(NamedTuple):
    """An ``ExceptionInfo`` on its way from a pool process to its worker."""

    pickled: bytes  # empty where the pool process cannot pickle it
    plain: Exception  # the substitute, where the worker cannot unpickle it
    traceback: str

    @classmethod
    def of(cls, info: Any) -> Packed:
        """Pack what a run raised; never raises."""
        error = exception_of(info)
        try:
            pickled = pickle.dumps(info) if _may_be_reported(error) else b""
        except BaseException:  # a ``__reduce__`` may raise any
            pickled = b""
        return cls(pickled, plain(error), info.traceback or "")

    def unpack(self) -> Any:
        """Return the ``ExceptionInfo``, with the plain exception if need be; never raises."""
        if self.pickled:
            try:
                info = pickle.loads(self.pickled)
                # Its text was tested in the pool process. Here ``str`` might query a database.
                if _is_failure(exception_of(info)):
                    return info
            except BaseException:  # its module may be importable in the pool process alone
                pass
        return info_of(self.plain, self.traceback)


class Escaped(NamedTuple):
    """Outcome of a job that left Celery's tracer by an exception. Either Celery's own code around
    the task's function raised it; or the task raised a ``BaseException`` that is no ``Exception``,
    and that does not end the process."""

    packed: Packed


def run_and_pack(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job in a pool process, and return an outcome that the worker can unpickle. Raises
    ``SystemExit`` or ``KeyboardInterrupt`` where the task ends its process."""
    try:
        outcome = run(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        if type(error) in ENDING and is_harmless(error):
            raise
        # One of a class of the user's is replaced. billiard reports the status to the worker.
        sys.exit(message_of(error))
    except BaseException as error:
        if _is_terminating():  # the job was cut short, and what it raised then is no outcome
            raise
        return Escaped(Packed.of(info_of(error)))
    if (failed := failure_of(outcome)) is not None:
        return (outcome[0], Packed.of(failed), *outcome[2:])
    return outcome


def error_of(outcome: Any) -> Any:
    """Return the ``ExceptionInfo`` of an error that Celery's tracer did not turn into an outcome;
    None if there was none."""
    if isinstance(outcome, Escaped):
        return outcome.packed.unpack()
    return outcome if isinstance(outcome, ExceptionInfo) else None


def unpacked(outcome: Any) -> Any:
    """Return an outcome as Celery's tracer returned it, also if ``run_and_pack`` has packed it."""
    if isinstance(outcome, tuple) and len(outcome) == 3 and isinstance(outcome[1], Packed):
        return outcome[0], outcome[1].unpack(), outcome[2]
    return outcome


def run_and_check(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job in the worker's own process, and return an outcome (or raise an exception) that the
    worker can print and compare."""
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


def _is_terminating() -> bool:
    """Return whether this pool process handles a SIGTERM; before billiard 4.3 that is unknown."""
    fired = getattr(common, "terminate_handler_fired", None)
    return bool(fired and fired())


def failure_of(outcome: Any) -> Any:
    """Return the ``ExceptionInfo`` in an outcome of Celery's tracer; None if the job succeeded."""
    is_traced = isinstance(outcome, tuple) and len(outcome) == 3
    return outcome[1] if is_traced and isinstance(outcome[1], ExceptionInfo) else None


def exception_of(info: Any) -> BaseException:
    """Return what was raised, without the wrapper that billiard puts around it."""
    error: Any = info.exception
    # By its class: other exceptions may have an attribute ``exc`` of their own.
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
    """Return whether Celery and this package can safely print an exception, compare it, and read
    its class and its arguments; never raises."""
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
            honest = False  # raised by a task: unpickling would yield its ``exc`` instead
        return honest and all(type(text) is str for text in texts)
    except BaseException:  # an object of the user may raise any
        return False


def _may_be_reported(error: BaseException) -> bool:
    """Return whether Celery may get the exception of a failed task as it is. If a task raises
    billiard's wrapper around a ``SystemExit``, Celery would raise that in the worker."""
    return _is_failure(error) and is_harmless(error)


def _is_failure(error: BaseException) -> bool:
    """Return whether Celery settles an exception as a failure of the job. For others it ends the
    process or requeues the job."""
    kind = type(error)
    return issubclass(kind, Exception) and not issubclass(kind, OF_POOLS)


def plain(error: BaseException) -> Exception:
    """Return an exception of Celery's own with the same text, for which Celery does the same (a
    failure, ``Ignore``, ``Reject`` or ``Retry``); never raises."""
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


def name_of_raised(error: BaseException) -> str:
    """Return the name of the class that a task raised, for the job's history. The text of the
    exception is left out, since it may quote the job's arguments. The status of a ``SystemExit`` is
    added if it is a number."""
    replaced = error.__context__ if issubclass(type(error), WorkerLostError) else None
    if replaced is not None:  # Celery replaces what would end a process, on threads and greenlets
        error = replaced
    kind = type(error)
    if issubclass(kind, UnpickleableExceptionWrapper):
        return message_of(_attribute(error, "exc_cls_name"))
    status = _attribute(error, "code") if issubclass(kind, SystemExit) else None
    return f"{class_name(error)}({status})" if type(status) is int else class_name(error)


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
