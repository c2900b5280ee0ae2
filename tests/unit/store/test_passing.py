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

from celery_superfetch.store.redis.server import FULL_TEXT, is_temporary


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), True),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), True),
        (ResponseError("Command # 1 (SET x y) of pipeline caused error: MISCONF Redis is"), True),
        (ResponseError(f"command not allowed when {FULL_TEXT}. script: 1"), True),
        (ResponseError("BUSY Redis is busy running a script. You can only call SCRIPT KILL"), True),
        (ResponseError("Transaction discarded because of: BUSY Redis is busy running"), True),
        (ResponseError("BUSYGROUP Consumer Group name already exists"), False),
        (ResponseError("BUSYKEY Target key name already exists."), False),
        (OutOfMemoryError("command not allowed"), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (BusyLoadingError("Redis is loading the dataset in memory"), True),
        (ResponseError("WRONGTYPE 'OOM' is not a queue: the key holds a string"), False),
        (ResponseError("Command # 1 (SET MISCONF y) of pipeline caused error: WRONGTYPE"), False),
        (NoPermissionError("this user has no permissions"), False),
        (ValueError("MISCONF"), False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refusal_passes_by_its_code_or_its_class(error, passes):
    assert is_temporary(error) is passes
