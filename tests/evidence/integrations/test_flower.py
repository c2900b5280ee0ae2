"""Flower knows a broker by the scheme of its URL, and jobs by their events; ours keep both."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.process import Process
from support.servers.server import free_port
from support.waiting import eventually
from support.workers.worker import process_env

pytest.importorskip("flower", reason="flower is not installed")


@pytest.fixture
def page(url: str, env: Any, keep: Callable[[Any], Any], tmp_path: Path) -> Callable[[str], str]:
    """`page("/broker")`: what Flower shows there; empty while it cannot be asked."""
    port = free_port()
    command = f"-m celery -A support.apps.shop flower --address=127.0.0.1 --port={port}"
    keep(
        Process(
            [sys.executable, *command.split()],
            log=tmp_path / "flower.log",
            env=process_env({**env(), "FLOWER_UNAUTHENTICATED_API": "1"}),
            title="flower",
        )
    )

    def read(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
                return str(reply.read().decode())
        except urllib.error.URLError:
            return ""

    return read


def test_flowers_broker_page_shows_the_queues(page, shop):
    shop.note.delay("a")
    body = eventually(lambda: page("/broker"), within=40)
    assert "celery" in body
    assert "redis://" in body


def test_flower_shows_a_killed_job_as_failed(page, worker, shop):
    eventually(lambda: page("/broker"), within=40)  # it hears from here on
    worker(args=["-E"], options={"strike_limit": 1})
    shop.note.delay("a")
    shop.kill_child.delay("pill")

    def states() -> dict[str, str]:
        return {task["name"]: task["state"] for task in json.loads(page("/api/tasks")).values()}

    notice = {"celery_superfetch.announce": "SUCCESS"}  # a job as any other
    expected = {"shop.note": "SUCCESS", "shop.kill_child": "FAILURE", **notice}
    eventually(lambda: states() == expected)
