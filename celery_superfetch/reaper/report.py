"""The report of one reap pass.

``Reaper`` makes and fills it, and its caller reads it: a worker's maintenance thread, beat's reap
task, and the command `superfetch reap`. ``app/reaper.py`` writes it down on the server, for
`status`. `superfetch drain` uses it for its errors alone. It is in memory: if the process dies,
what the pass has done is done, and only the report is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ..model.log_text import one_line_each
from ..model.verdict import Reason
from ..model.words import number

logger = one_line_each(logging.getLogger(__name__))


@dataclass
class Report:
    """The findings and the acts of one pass."""

    #: The first word of an error's log line, and its last part: what happens next. `superfetch
    #: drain` has others.
    by: ClassVar = "reap"
    again: ClassVar = "the next pass tries again"

    owners: int = 0  #: how many are registered
    lists: set[str] = field(default_factory=set)  #: the queue lists that they serve
    dead: dict[str, Reason] = field(default_factory=dict)  #: dead owners -> why
    recovered: int = 0  #: jobs that went back to their queues, or on probation
    #: Queue lists whose suspects went on probation.
    probation: set[str] = field(default_factory=set)
    killed: int = 0  #: jobs that went to the dead set
    errors: int = 0  #: each is logged; the next pass tries again
    seconds: float = 0.0  #: duration of the pass
    dry_run: bool = False  #: nothing was changed
    #: The pass also did the housekeeping, as one in six does: it trimmed the dead set.
    kept_house: bool = False
    #: False if another process made the pass of this interval: nothing was done in this one.
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
            "%s: %s: %s. It was left as it is, nothing was lost; %s.",
            self.by,
            subject,
            str(exc).rstrip(".") if is_redis_error else repr(exc),
            self.again,
            exc_info=None if is_redis_error else exc,
        )

    @contextmanager
    def surviving(self, subject: str) -> Iterator[None]:
        """Let the pass go on if the body of this context fails; the error is in the report."""
        try:
            yield
        except Exception as exc:  # if it ended the pass, other owners' jobs would wait
            self.failed(subject, exc)

    def __str__(self) -> str:
        if not self.ran:
            return "another pass had its turn"
        verb = "would recover" if self.dry_run else "recovered"
        reasons = "; ".join(f"{owner}: {reason.value}" for owner, reason in self.dead.items())
        return (
            f"reap: {len(self.dead)} of {number(self.owners, 'worker')} dead, {verb} "
            f"{number(self.recovered, 'job')}, killed {self.killed}, errors {self.errors}, "
            f"{self.seconds:.3f} s" + (f" ({reasons})" if reasons else "")
        )
