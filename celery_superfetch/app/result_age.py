"""Tells a result of a job from that of an older job with the same task id, since senders may reuse
ids.

``steps`` asks before a run, ``worker/request.py`` for a job whose pool process was lost, and
``announcement`` for a dead-lettered job. A pure function: a death loses nothing.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

SKEW_S = 2.0  # seconds by which the clocks of two workers may differ


def is_of_job(meta: Any, first_claimed: float) -> bool:
    """Return whether a stored result may be of this message: it was not stored before a worker
    first claimed the message.

    Arguments:
        meta: the result as the backend has it. If it does not say when it was stored, the answer is
            True.
        first_claimed: when a worker first claimed the message (s; 0: not known).
    """
    done = meta.get("date_done")
    try:
        at = datetime.fromisoformat(done) if isinstance(done, str) else done
        at = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
        return bool(at.timestamp() >= first_claimed - SKEW_S)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return True
