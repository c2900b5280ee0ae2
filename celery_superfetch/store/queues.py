"""kombu's queue lists, and the suspects from them: jobs on probation, which run alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from .database import Structure

CHUNK = 100  # queue lists of one script
BATCH = 50  # suspects moved in one round trip


class Queues(Structure):
    def lengths(self, names: Sequence[str]) -> list[tuple[int | ResponseError, int]]:
        """For each its length, or why it has none, and how many from it are on probation."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.llen(self.keys.queue(name))
                pipe.llen(self.keys.probation(name))
            replies = pipe.execute(raise_on_error=False)
        for suspects in replies[1::2]:
            if isinstance(suspects, ResponseError):
                raise suspects
        return list(zip(replies[::2], replies[1::2], strict=True))

    def oldest(
        self, names: Sequence[str], told: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        """Queue list -> seconds for which its oldest job has been seen as the oldest: no more than
        its age, which no message tells. What is ``told`` of a pass that ends is noted as the last
        one, and so is who is next in each list."""
        fields = [part for pair in (told or {}).items() for part in pair]
        ages: dict[str, float] = {}
        for at in range(0, max(1, len(names)), CHUNK):
            some = names[at : at + CHUNK]
            keys = [self.keys.heads, self.keys.last_pass, self.keys.stats]
            keys += map(self.keys.queue, some)
            args = [self.keys.queue(""), len(fields), *fields, *some]
            now, *since = self.scripts.run("heads", keys, args)
            ages |= {n: (now - s) / 1000 for n, s in zip(some, since, strict=True) if s}
            fields = fields[:2]  # a pass is counted once
        return ages

    def noted(self) -> list[str]:
        """The queue lists in which the last pass saw a job wait, whoever serves them."""
        names: Any = self.client.hkeys(self.keys.heads)
        return [name.decode(errors="replace") for name in names]

    def ends(self, name: str, count: int) -> list[bytes]:
        """So many of the oldest and of the youngest messages of a queue list, each once."""
        key = self.keys.queue(name)
        with self.client.pipeline(transaction=False) as pipe:
            pipe.lrange(key, -count, -1)
            pipe.lrange(key, 0, count - 1)
            oldest, youngest = pipe.execute()
        return list(dict.fromkeys([*oldest, *youngest]))

    def can_take(self, names: Sequence[str]) -> list[bool]:
        """Whether a job can be put there: no other type of value lives under the key."""
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.type(self.keys.queue(name))
            return [kind in (b"list", b"none") for kind in pipe.execute()]


class Suspects(Structure):
    """Jobs on probation (``superfetch:probation:<queue list>``), and who rests for them."""

    def lists(self) -> frozenset[str]:
        names: Any = self.client.smembers(self.keys.on_probation)
        return frozenset(name.decode() for name in names)

    def size(self, queue_list: str) -> int:
        return int(self.client.llen(self.keys.probation(queue_list)))

    def let_rest(self, owner: str, lists: Sequence[str], first: float, work: int) -> bool | None:
        """Whether an owner rests for suspects from some queue lists; None: there are none. With no
        list it says that its rest lasted until now, and that a suspect had its turn. The first rest
        takes so many seconds; ``work`` times as long as one nobody rests afterwards."""
        keys = [self.keys.rest, self.keys.on_probation, *map(self.keys.probation, lists)]
        answer = self.scripts.run("rest", keys, [owner, int(first * 1000), work, *lists])
        return None if answer < 0 else bool(answer)

    def give_back(self, queue_list: str) -> int:
        """Move those from a queue list to its front; their number."""
        suspects, queue = self.keys.probation(queue_list), self.keys.queue(queue_list)
        size = self.size(queue_list)
        # From the newest to the oldest, each in front of the one before.
        for at in range(0, size, BATCH):
            with self.client.pipeline(transaction=False) as pipe:
                for _ in range(min(BATCH, size - at)):
                    pipe.lmove(suspects, queue, "LEFT", "RIGHT")
                pipe.execute()
        return size

    def purge(self, lists: Sequence[str]) -> int:
        with self.client.pipeline() as pipe:
            for name in lists:
                suspects = self.keys.probation(name)
                pipe.llen(suspects)
                pipe.delete(suspects)
                pipe.srem(self.keys.on_probation, name)
            return sum(pipe.execute()[::3])
