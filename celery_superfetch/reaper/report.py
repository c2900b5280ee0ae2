"""The report of one reap pass.

``Reaper`` makes and fills it, and its caller reads it: a worker's maintenance thread, beat's reap
task, and the command `superfetch reap`. ``app/reaper.py`` records it in Redis, for `superfetch
status`. `superfetch rollback` uses a subclass for its errors alone. The report is in memory. If the
process dies, the jobs that the pass has moved stay moved, and only the report is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ..model.humanize import number
from ..model.log_text import one_line_each
from ..model.verdict import Reason

logger = one_line_each(logging.getLogger(__name__))


@dataclass
class Report:
    """The findings and the results of one pass. An owner is a process that claims jobs."""

    #: The first word of an error's log line; `superfetch rollback` has another.
    by: ClassVar = "Reap pass"
    #: The end of that line: what happens next.
    again: ClassVar = "the next pass tries again"

    owners: int = 0  #: number of registered owners
    lists: set[str] = field(default_factory=set)  #: the queue lists from which these owners claim
    dead: dict[str, Reason] = field(default_factory=dict)  #: dead owner -> why it is dead
    recovered: int = 0  #: jobs that were returned to their queues, or put on probation
    #: Queue lists of the jobs that were put on probation: suspected of killing their worker, they
    #: wait to run with no other job in it.
    probation: set[str] = field(default_factory=set)
    killed: int = 0  #: jobs that were moved to the dead set
    errors: int = 0  #: number of errors, each of which was logged
    seconds: float = 0.0  #: duration of the pass
    dry_run: bool = False  #: nothing was changed
    #: As about one in six of a process's passes does.
    trimmed_dead_set: bool = False
    #: False if another process had the lock of this interval's pass: no pass was made here.
    ran: bool = True

    @property
    def did_something(self) -> bool:
        return bool(self.dead or self.recovered or self.killed or self.errors)

    def failed(self, subject: str, exc: Exception) -> None:
        """Count and log an error. ``subject``: the owner, job or list that was left as it is."""
        self.errors += 1
        is_redis_error = isinstance(exc, RedisError)
        logger.log(
            # In a failover, or while a cluster's slot moves, this is to be expected.
            logging.WARNING if isinstance(exc, RedisConnectionError) else logging.ERROR,
            "%s: no action on %s: %s. Nothing was lost; %s.",
            self.by,
            subject,
            str(exc).rstrip(".") if is_redis_error else repr(exc),
            self.again,
            exc_info=None if is_redis_error else exc,
        )

    @contextmanager
    def logging_errors(self, subject: str) -> Iterator[None]:
        """Swallow an error of the ``with`` body, so that the pass continues; count and log it."""
        try:
            yield
        except Exception as exc:  # if it ended the pass, other owners' jobs would wait
            self.failed(subject, exc)

    def __str__(self) -> str:
        if not self.ran:
            return "another process made the pass of this interval"
        verb = "would be recovered" if self.dry_run else "recovered"
        reasons = "; ".join(f"{owner}: {reason.value}" for owner, reason in self.dead.items())
        return (
            f"reap: {len(self.dead)} of {number(self.owners, 'worker')} dead, "
            f"{number(self.recovered, 'job')} {verb}, {self.killed} moved to the dead set, "
            f"{number(self.errors, 'error')}, {self.seconds:.3f} s"
            + (f" ({reasons})" if reasons else "")
        )
