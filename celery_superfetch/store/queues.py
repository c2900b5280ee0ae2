"""kombu's queue lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from .database import Structure

#: Queue lists of one script.
CHUNK = 100


class Queues(Structure):
    """The queue lists, one for each priority step of a queue."""

    def lengths(self, names: Sequence[str]) -> list[tuple[int | ResponseError, int]]:
        """For each its length, or why it has none, and how many from it are on probation."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.llen(self.keys.queue(name))
                pipe.llen(self.keys.probation(name))
            replies = iter(pipe.execute(raise_on_error=False))
        rows = []
        for length, suspects in zip(replies, replies, strict=True):
            if isinstance(suspects, ResponseError):
                raise suspects
            rows.append((length, suspects))
        return rows

    def oldest(self, names: Sequence[str], *, note: bool = False) -> dict[str, float]:
        """Queue list -> seconds for which its oldest job has been seen as the oldest.

        A message does not say when it was sent. So passes note who is next in a list, and since
        when: never more than the true age, and next to it where nobody consumes.

        Arguments:
            note: write down what is new.
        """
        ages: dict[str, float] = {}
        for at in range(0, len(names), CHUNK):
            some = names[at : at + CHUNK]
            keys = [self.keys.heads, *map(self.keys.queue, some)]
            now, *since = self.scripts.run("heads", keys, [int(note), *some])
            ages |= {n: (now - s) / 1000 for n, s in zip(some, since, strict=True) if s}
        return ages

    def noted(self) -> list[str]:
        """The queue lists in which somebody has seen a job wait."""
        names: Any = self.client.hkeys(self.keys.heads)
        return [name.decode(errors="replace") for name in names]

    def can_take(self, names: Sequence[str]) -> list[bool]:
        """Whether a job can be put there: no other type of value lives under the key."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.type(self.keys.queue(name))
            return [kind in (b"list", b"none") for kind in pipe.execute()]
