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

from celery_superfetch.store.redis.server import FULL_TEXT, is_read_only, is_temporary


def in_script_of_redis_6(text: str) -> ResponseError:
    """Redis 6.2 answers so if a command within a script was refused."""
    where = f"Error running script (call to f_{'0' * 40}): @user_script:1: @user_script: 1: "
    return ResponseError(where + text)


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
        (in_script_of_redis_6("-READONLY You can't write against a read only replica."), True),
        (in_script_of_redis_6("-NOREPLICAS Not enough good replicas to write."), True),
        (in_script_of_redis_6("-MISCONF Redis is configured to save RDB snapshots"), True),
        (in_script_of_redis_6("-WRONGTYPE 'OOM' is not a queue"), False),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_a_refusal_passes_by_its_code_or_its_class(error, passes):
    assert is_temporary(error) is passes


@pytest.mark.parametrize(
    ("error", "is_replica"),
    [
        (ReadOnlyError("You can't write against a read only replica."), True),
        (in_script_of_redis_6("-READONLY You can't write against a read only replica."), True),
        # As a script that returns the error has it.
        (ResponseError("@user_script: 12: -READONLY You can't write against a"), True),
        (in_script_of_redis_6("-NOREPLICAS Not enough good replicas to write."), False),
        (ResponseError("WRONGTYPE 'READONLY' is not a queue: the key holds a string"), False),
        (ValueError("@user_script: 1: -READONLY"), False),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_a_replica_is_recognized_from_within_a_script_too(error, is_replica):
    assert is_read_only(error) is is_replica
