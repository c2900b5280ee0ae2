"""What one pass found and did, as those who read it know it."""

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
    """What one pass found and did."""

    #: Of an error: who met it, and who tries again.
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
    seconds: float = 0.0  #: that it took
    dry_run: bool = False  #: nothing was changed
    #: Whether it also did what is done at one pass in six.
    kept_house: bool = False
    ran: bool = True  #: False if another pass had its turn, and nothing was looked at

    @property
    def did_something(self) -> bool:
        return bool(self.dead or self.recovered or self.killed or self.errors)

    def failed(self, subject: str, exc: Exception) -> None:
        self.errors += 1
        is_redis_error = isinstance(exc, RedisError)
        logger.log(
            # In a failover, or while a slot moves, this is nobody's fault.
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
        try:
            yield
        except Exception as exc:  # of Redis, of one job, or of an app's code: others wait
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
