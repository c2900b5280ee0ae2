"""The pipe that billiard leaves open for a child that could not be forked."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from typing import Any

import pytest
from billiard import get_context, popen_spawn_posix, semaphore_tracker

from celery_superfetch.worker import prefork


def refuse(*_: Any) -> Any:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def limit_descriptors() -> None:
    """Leave no file descriptor for a pipe."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))


def open_descriptors() -> set[str]:
    """Return the numbers of the open file descriptors."""
    return {str(number) for number in range(256) if _is_open(number)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@pytest.fixture
def refused(monkeypatch):
    """`refused(method, prepare)`: the error by which a child could not be started."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(semaphore_tracker, "getfd", lambda: 0)

    def start(method: str, prepare: Callable[[], object]) -> OSError:
        child = get_context(method).Process(target=print)
        prepare()
        try:
            child.start()
        except OSError as exc:
            return exc
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        raise AssertionError("the child was started")

    return start


@pytest.mark.parametrize(
    ("method", "module", "name"),
    [("fork", os, "fork"), ("spawn", popen_spawn_posix, "spawnv_passfds")],
)
def test_no_end_of_the_pipe_stays_open(refused, monkeypatch, method, module, name):
    """A worker with `spawn` had no file descriptor left after some minutes of refusals."""
    before = open_descriptors()
    refusal = refused(method, lambda: monkeypatch.setattr(module, name, refuse))
    assert open_descriptors() > before
    prefork._close_pipe_of_unforked(refusal)
    assert open_descriptors() == before


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pipe_that_could_not_be_made_is_no_error(refused, method):
    """With `spawn` the worker ended by a TypeError, and its jobs got a strike."""
    before = open_descriptors()
    refusal = refused(method, limit_descriptors)
    assert refusal.errno == errno.EMFILE
    prefork._close_pipe_of_unforked(refusal)
    assert open_descriptors() == before


def test_the_number_of_a_closed_end_in_use_again_stays_open(refused, monkeypatch):
    before = open_descriptors()
    refusal = refused(
        "spawn", lambda: monkeypatch.setattr(popen_spawn_posix, "spawnv_passfds", refuse)
    )
    ends = os.pipe()
    prefork._close_pipe_of_unforked(refusal)
    assert open_descriptors() == before | {*map(str, ends)}
    for end in ends:
        os.close(end)
