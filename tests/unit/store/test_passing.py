"""Which refusals of a server pass."""

from __future__ import annotations

import pytest
from redis.exceptions import (
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from celery_superfetch.store.redis.server import FULL, is_passing


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), True),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), True),
        (ResponseError("Command # 1 (SET x y) of pipeline caused error: MISCONF Redis is"), True),
        (ResponseError(f"command not allowed when {FULL}. script: 1"), True),
        (OutOfMemoryError("command not allowed"), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (BusyLoadingError("Redis is loading the dataset in memory"), True),
        (ResponseError("WRONGTYPE 'OOM' is no queue, it holds a string"), False),
        (ResponseError("Command # 1 (SET MISCONF y) of pipeline caused error: WRONGTYPE"), False),
        (NoPermissionError("this user has no permissions"), False),
        (ValueError("MISCONF"), False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refusal_passes_by_its_code_or_its_class(error, passes):
    assert is_passing(error) is passes
