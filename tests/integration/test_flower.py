"""Flower knows a broker by the scheme of its URL; ours keeps its own."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from harness.process import Process
from harness.server import free_port
from harness.waiting import eventually
from harness.worker import process_env


def test_flowers_broker_page_shows_the_queues(url: str, env: Any, shop: Any, tmp_path: Any) -> None:
    pytest.importorskip("flower", reason="flower is not installed")
    port = free_port()
    shop.note.delay("a")
    command = f"-m celery -A apps.shop flower --address=127.0.0.1 --port={port}"
    flower = Process(
        [sys.executable, *command.split()],
        log=tmp_path / "flower.log",
        env=process_env({**env(), "FLOWER_UNAUTHENTICATED_API": "1"}),
        cwd=tmp_path,
        title="flower",
    )

    def page() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/broker", timeout=5) as reply:
                return str(reply.read().decode())
        except urllib.error.URLError:
            return ""

    try:
        body = eventually(page, within=40)
    finally:
        flower.close()
    assert "celery" in body
    assert "redis://" in body
