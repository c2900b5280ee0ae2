"""What a run came to reaches the worker as what can be settled, whatever a task raised."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.serialization import UnpickleableExceptionWrapper

from celery_superfetch.worker.outcomes import (
    Escaped,
    Packed,
    exception_of,
    info_of,
    is_harmless,
    run_and_check,
    run_and_pack,
)
from support.workers.untrusted import RAISED, NoTruth, OneWay, OnlyInChild, Unprintable

ENDS = [kind for kind in RAISED if kind.startswith("exit: ")]
KINDS = [kind for kind in RAISED if kind not in ENDS]


def raised(kind: str) -> BaseException:
    return RAISED[kind][0]()


def failed(error: BaseException) -> tuple[int, Any, float]:
    """As Celery's tracer returns it, whatever is in it: billiard formats it in vain."""
    info = info_of(ValueError())
    info.exception = ExceptionWithTraceback(error, "its traceback")
    return 1, info, 0.5


def sent(outcome: Any) -> Any:
    """As the pipe of a pool brings it."""
    return pickle.loads(pickle.dumps(outcome))


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_gets_what_can_be_settled(kind):
    """From a pool process, and from a thread or a greenlet of its own."""
    failure, packed, seconds = sent(run_and_pack(failed, raised(kind)))
    assert (failure, seconds) == (1, 0.5)
    _, info, _ = run_and_check(failed, raised(kind))
    for found in (packed.unpack(), info):
        assert isinstance(found, ExceptionInfo)
        error = exception_of(found)
        assert is_harmless(error)
        assert isinstance(error, Exception)
        assert not isinstance(error, (WorkerLostError, TimeLimitExceeded, MemoryError))
        was = raised(kind)
        for semipredicate in (Reject, Ignore):
            assert isinstance(error, semipredicate) == issubclass(type(was), semipredicate)


@pytest.mark.parametrize(
    "error", [ValueError("a", 1), Reject("why", requeue=True), Ignore("why"), Retry("later")]
)
def test_a_usual_exception_comes_as_it_is(error):
    _, packed, _ = sent(run_and_pack(failed, error))
    found = exception_of(packed.unpack())
    assert (type(found), repr(found)) == (type(error), repr(error))
    outcome = failed(error)
    assert run_and_check(lambda: outcome) is outcome


def test_what_stands_for_another_says_the_same():
    error = exception_of(sent(Packed.of(failed(OnlyInChild("a"))[1])).unpack())
    assert isinstance(error, UnpickleableExceptionWrapper)
    assert str(error) == "a"
    assert repr(error.restore()) == "OnlyInChild('a')"
    info = Packed.of(failed(Unprintable())[1]).unpack()
    assert str(exception_of(info)) == "<Unprintable, whose str raises ValueError>"


@pytest.mark.parametrize(("requeue", "kept"), [(1, True), ("", False), (NoTruth(), False)])
def test_what_is_rejected_keeps_its_way(requeue, kept):
    info = sent(run_and_pack(failed, Reject(OneWay(), requeue=requeue)))[1].unpack()
    assert exception_of(info).requeue is kept


@pytest.mark.parametrize("kind", ENDS)
def test_what_ends_a_process_can_be_told_of(kind):
    def run() -> None:
        raise raised(kind)

    for runs in (run_and_pack, run_and_check):
        with pytest.raises(SystemExit) as told:
            runs(run)
        assert type(told.value.code) is str
        assert is_harmless(told.value)


def test_a_job_around_whose_body_celery_raised_has_failed():
    def run() -> None:
        raise NoTruth("in the tracer")

    outcome = sent(run_and_pack(run))
    assert isinstance(outcome, Escaped)
    assert "in the tracer" in str(exception_of(outcome.packed.unpack()))
    with pytest.raises(UnpickleableExceptionWrapper, match="in the tracer"):
        run_and_check(run)


@pytest.mark.parametrize("outcome", [None, (0, "'a'", 0.1), (1, "no info", 0.1), "a", ()])
def test_what_has_not_failed_is_left_alone(outcome):
    assert run_and_pack(lambda: outcome) == outcome
    assert run_and_check(lambda: outcome) == outcome
