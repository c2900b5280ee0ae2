"""Chaos: real workers that die, freeze and come back, and eyes in the broker's database."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.process import Process
from support.servers.ledger import Ledger
from support.servers.server import ExternalServer, Server
from support.shown import STARTED
from support.workers.fleet import Fleet
from support.workers.scene import Scene


@pytest.fixture
def scenes(
    fresh_server: Callable[..., Server], remember: Callable[[Process], None], tmp_path: Path
) -> Iterator[Callable[..., list[Scene]]]:
    """`scenes("prefork", "solo", conf={...}, ...)`: a scene for each pool, all at once."""
    staged: list[Scene] = []

    def stage(*pools: str, **settings: Any) -> list[Scene]:
        new = [Scene(fresh_server(), pool, tmp_path, **settings) for pool in pools]
        staged.extend(new)
        for scene in new:
            remember(scene.worker)
        return new

    yield stage
    for scene in staged:
        scene.close()


@pytest.fixture
def small(
    request: pytest.FixtureRequest,
    server: Server | ExternalServer,
    ledger: Ledger,
    tmp_path: Path,
) -> Iterator[Callable[..., Fleet]]:
    """`small(pools={...}, conf={...}, app=...)`: a fleet of the test's own."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Fleet:
            fleet = stack.enter_context(Fleet(server.url(), ledger, tmp_path, **options))
            request.node.stash[STARTED] = list(fleet.workers.values())
            return fleet

        yield make
