"""Whatever there is of ours, by SCAN: for the full sweep, and for leaving."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain

from .database import Structure

logger = logging.getLogger(__name__)

#: Keys asked for in one SCAN step, or deleted in one command.
SCAN_COUNT = 1000


class Keyspace(Structure):
    """The keys of ours; each method walks through the whole database.

    Raises:
        redis.exceptions.RedisError: the server could not be asked, or SCAN is forbidden.
    """

    def private_lists(self) -> Iterator[tuple[str, str]]:
        """Owner and queue list of each private list; those with held jobs alone as well."""
        for key in chain(self._scan(self.keys.private_pattern), self._scan(self.keys.held_pattern)):
            try:
                yield self.keys.parse_private(key.decode())
            except UnicodeDecodeError:
                logger.warning("Key %r looks like a private list, but no owner made it.", key)

    def owners(self) -> Iterator[str]:
        """Everybody who has facts."""
        for key in self._scan(self.keys.facts_pattern):
            yield self.keys.parse_private(key.decode(errors="replace"))[0]

    def left(self) -> tuple[int, list[bytes]]:
        """Number of jobs in flight or on probation, and the keys that are neither theirs nor the
        dead set's."""
        found = set(self._scan(self.keys.own_pattern))
        private = {key for key in found if self.keys.has_jobs(key)}
        with self.client.pipeline(transaction=False) as pipe:
            for key in private:
                pipe.hlen(key) if self.keys.is_held(key) else pipe.llen(key)
            jobs = sum(n for n in pipe.execute(raise_on_error=False) if n)
        return jobs, [key for key in found - private if not self.keys.is_dead_set(key)]

    def delete(self, keys: Sequence[bytes]) -> int:
        """Delete some keys; the number that were there."""
        return sum(
            int(self.client.delete(*keys[at : at + SCAN_COUNT]))
            for at in range(0, len(keys), SCAN_COUNT)
        )

    def _scan(self, pattern: str) -> Iterator[bytes]:
        return self.client.scan_iter(match=pattern, count=SCAN_COUNT)
