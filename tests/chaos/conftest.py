"""Chaos: real workers that die, freeze and come back, and eyes in the broker's database."""

from __future__ import annotations

import pytest
import redis

from harness.database import Database


@pytest.fixture
def db(client: redis.Redis) -> Database:
    """The broker's database as an operator sees it."""
    return Database(client)
