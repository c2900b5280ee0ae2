"""The number of jobs that a consumer may be given, as a channel answers its fetch loop."""

from __future__ import annotations

from typing import NamedTuple


class Credit(NamedTuple):
    """The room for further jobs at one moment. Jobs that were claimed, or have landed, and were
    not delivered yet count against it."""

    room: int  # jobs that may be claimed now
    held: int  # jobs that the consumer has and has not settled
    limit: int  # the consumer's prefetch; 0: none
    is_unlimited: bool  # nothing limits the consumer, neither a prefetch nor Celery's free slots
