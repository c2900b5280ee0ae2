"""What is otherwise than in Celery in a pool of processes, by a real one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import Hub

from celery_superfetch.worker.prefork import forget_closed_descriptors
from support.waiting import eventually


@pytest.fixture
def processes() -> Iterator[Any]:
    pool: Any = AsynPool(1, threads=False)
    yield pool
    pool.terminate()
    for child in pool._pool:
        os.kill(child.pid, signal.SIGKILL)
        child.join()


@pytest.mark.parametrize("mended", [True, False], ids=["here", "the control"])
def test_the_pipes_of_a_lost_child_are_forgotten_when_they_are_closed(processes, mended):
    """Celery took whatever had their numbers after a lost connection for a child's: with autoscale
    and max-tasks-per-child a worker hung, or ended, after one of a few."""
    hub = Hub()
    processes.register_with_event_loop(hub)
    if mended:
        forget_closed_descriptors(SimpleNamespace(_pool=processes))
    [child] = processes._pool
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: not child._is_alive())
    processes.destroy_queues(processes._find_worker_queues(child), child)
    assert (child.outqR_fd in processes._fileno_to_outq) is not mended
    processes._pool.remove(child)
    hub.close()
