"""The number of jobs that a consumer may be given now: what a channel's QoS returns to its fetch
loop. It is computed again each time; nothing of it outlives a call, or the process."""

from __future__ import annotations

from typing import NamedTuple


class Credit(NamedTuple):
    """The number of further jobs that a consumer may be given at one moment."""

    room: int  # jobs that may be claimed now; those that wait in the backlog are subtracted already
    held: int  # jobs that the consumer has and has not settled; not those in the backlog
    limit: int  # the consumer's prefetch; 0: no limit
    is_unlimited: bool  # nothing limits the consumer, neither a prefetch nor Celery's free slots
