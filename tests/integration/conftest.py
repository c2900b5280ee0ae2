"""The bench: the package's structures on the test's database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from parts.bench import Bench


@pytest.fixture
def make_bench(client: redis.Redis) -> Callable[..., Bench]:
    """`make_bench(owner_ttl=30, ...)`: the structures under other options."""

    def make(**options: Any) -> Bench:
        return Bench(client, **options)

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
