"""Packages that people have beside this one, as they are: each test skips without its own."""

from __future__ import annotations

import pytest
import redis

from support.servers.database import Database


@pytest.fixture
def db(client: redis.Redis) -> Database:
    """The broker's database as an operator sees it."""
    return Database(client)
