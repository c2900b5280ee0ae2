"""kombu's queue lists: their lengths, since when their jobs wait, and reads without a claim; and
the suspects, jobs on probation that wait for a solo run. Passes note what waits, the fetch loop
makes room for suspects, and commands and the console read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from redis.exceptions import RedisError, ResponseError

from ..model.job import digest
from .database import Structure, chunks

CHUNK = 100  # queue lists of one script
#: Bytes of messages that one script reads at most, but for the last: while it runs, the server
#: answers no other client.
ROOM = 1024 * 1024
MOVED_AT_ONCE = 50  # suspects that one round trip moves
READ, NOTE, NOTE_ALL = 0, 1, 2  # modes of oldest.lua
NOTED = 86400  # seconds, as a pass keeps its notes


def _text(name: bytes) -> str:
    """Decode the name of a queue list, as far as it can be decoded."""
    return name.decode(errors="replace")


class Queues(Structure):
    def lengths(self, names: Sequence[str]) -> list[tuple[int | ResponseError, int]]:
        """Return for each list its length, or the server's error, and how many of its jobs are on
        probation."""
        keys = [kind(name) for name in names for kind in (self.keys.queue, self.keys.probation)]
        replies = self._at_once((("LLEN", key) for key in keys), errors=True)
        for suspects in replies[1::2]:
            if isinstance(suspects, ResponseError):
                raise suspects
        return list(zip(replies[::2], replies[1::2], strict=True))

    def idle_s(self, names: Sequence[str]) -> dict[str, int]:
        """Return queue list -> seconds for which no job came or went there, and no client read it:
        each job is at least as old. Lists that are not there, or where the server does not say
        (OBJECT is forbidden, or it evicts by LFU), are left out. Ask before ``lengths``, which is a
        read as well."""
        ages = self._at_once(
            (("OBJECT", "IDLETIME", self.keys.queue(n)) for n in names), errors=True
        )
        return {n: age for n, age in zip(names, ages, strict=True) if isinstance(age, int)}

    def filled(self, names: Iterable[str]) -> list[str]:
        """Return those of some queue lists that have a job."""
        queue_lists = [*names]
        sizes = self._at_once([("LLEN", self.keys.queue(n)) for n in queue_lists], errors=True)
        return [
            n for n, size in zip(queue_lists, sizes, strict=True) if isinstance(size, int) and size
        ]

    def oldest(self, names: Sequence[str], *, notes: bool = False) -> dict[str, float]:
        """Return queue list -> seconds for which its oldest job has been seen as the oldest: at
        most the job's age, which no message contains. With ``notes`` a job that is seen for the
        first time is noted."""
        return self._ages([*names], NOTE if notes else READ)

    def note_waiting(self, names: Iterable[str]) -> None:
        """Note which job is next in these queue lists, and in those that have a note already: it
        looks at each list once, and in few lists by one command. If the process dies midway, the
        next pass notes the rest."""
        self._ages(sorted(names), NOTE_ALL)

    def _ages(self, names: list[str], mode: int) -> dict[str, float]:
        """Run ``oldest.lua`` as often as its bounds make necessary; in mode ``NOTE_ALL`` also for
        the lists that have a note and are not among ``names``, which are appended to these."""
        ages: dict[str, float] = {}
        at, keys, prefix = 0, [self.keys.oldest], self.keys.queue("")
        while at < len(names) or mode == NOTE_ALL:
            some = names[at : at + CHUNK]
            (now, *since), noted = self.scripts.run("oldest", keys, [prefix, mode, ROOM, *some])
            at += len(since)
            ages |= {n: (now - s) / 1000 for n, s in zip(some, since, strict=False) if s}
            if mode == NOTE_ALL:
                names += sorted({_text(name) for name in noted} - {*names})
                mode = NOTE
        return ages

    def noted(self) -> list[str]:
        """Return the queue lists in which the last pass saw a job wait, with or without a
        worker."""
        return [_text(name) for name in self.client.hkeys(self.keys.oldest)]

    def note(self, names: Iterable[str]) -> None:
        """Make commands and the console list these queue lists, which may have no worker; the next
        pass notes since when their jobs wait. If this fails, the jobs are there all the same."""
        oldest = self.keys.oldest
        commands = [("HSETNX", oldest, name, "") for name in names]
        with suppress(RedisError):
            self._at_once([*commands, ("EXPIRE", oldest, NOTED)])

    def take(self, names: Sequence[str], expires: int) -> tuple[bytes, bool] | None:
        """Remove the next message of some queue lists, in their order, without a claim.

        If the process dies afterwards, the message is lost: its receiver asked for no ack.

        Args:
            names: the queue lists.
            expires: ms of the queue's x-expires, which each look renews (0: none).

        Returns:
            The message, and whether it was delivered before; None if there is none.

        Raises:
            RedisError: the server did not answer; a message may be gone.
        """
        keys = [self.keys.queue(name) for name in names]
        payload = next(filter(None, map(self.client.rpop, keys)), None)
        if expires:
            self._at_once(("PEXPIRE", key, expires) for key in keys)
        if payload is None:
            return None
        return payload, bool(self.client.exists(self.keys.recoveries(digest(payload))))

    def ends(self, name: str, count: int) -> list[bytes]:
        """So many of the oldest and of the youngest messages of a queue list, each once."""
        key = self.keys.queue(name)
        spans = (-count, -1), (0, count - 1)
        oldest, youngest = self._at_once(("LRANGE", key, *span) for span in spans)
        return list(dict.fromkeys([*oldest, *youngest]))

    def purge(self, names: Sequence[str]) -> int:
        """Delete the suspects and the parked jobs of queue lists; how many."""
        keys = self.keys
        with self.client.pipeline() as pipe:
            for name in names:
                suspects, parked = keys.probation(name), keys.parked_of(name)
                pipe.llen(suspects).zcard(parked).delete(suspects, parked)
                pipe.srem(keys.on_probation, name).zrem(keys.parked, name)
            replies = pipe.execute()
        return sum(replies[::5]) + sum(replies[1::5])

    def can_take(self, names: Sequence[str]) -> list[bool]:
        """Whether a job can be put there: no other type of value lives under the key."""
        kinds = self._at_once(("TYPE", self.keys.queue(name)) for name in names)
        return [kind in (b"list", b"none") for kind in kinds]


class Room(NamedTuple):
    """The answer to an owner that asks whether it is to make room for suspects."""

    none: bool  # there are no suspects
    quiesces: bool  # it claims nothing until it has no job left
    alongside: bool  # a suspect waits that may run alongside others: a quiesce for it was in vain


class Suspects(Structure):
    """Jobs on probation (``superfetch:probation:<queue list>``), and the owner that quiesces for
    one. A recovery puts a job here, and an owner claims it for a solo run."""

    def lists(self) -> frozenset[str]:
        """Return the queue lists with suspects."""
        names = self.client.smembers(self.keys.on_probation)
        return frozenset(name.decode(errors="replace") for name in names)

    def size(self, queue_list: str) -> int:
        """Return how many suspects of a queue list wait."""
        return int(self.client.llen(self.keys.probation(queue_list)))

    def make_room(self, owner: str, lists: Sequence[str], first: float, work: int) -> Room:
        """Ask whether an owner is to quiesce for suspects from some queue lists. With no list it
        says that its quiesce lasted until now, and that a suspect had its turn. The first one takes
        so many seconds; ``work`` times as long as one nobody quiesces afterwards."""
        keys = [self.keys.rest, self.keys.on_probation, *map(self.keys.probation, lists)]
        window = int(self.config.strike_window)
        args = [owner, int(first * 1000), work, self.keys.recoveries(""), window, ROOM, *lists]
        answer, alongside = self.scripts.run("make_room", keys, args)
        return Room(answer < 0, answer > 0, bool(alongside))

    def requeue(self, queue_list: str) -> int:
        """Move the suspects of a queue list to its front; return how many there were. If the caller
        crashes midway, each job is in one of the two lists, and a second call moves the rest."""
        suspects, queue = self.keys.probation(queue_list), self.keys.queue(queue_list)
        size = self.size(queue_list)
        # From the newest to the oldest, each in front of the one before.
        for commands in chunks([("LMOVE", suspects, queue, "LEFT", "RIGHT")] * size, MOVED_AT_ONCE):
            self._at_once(commands)
        return size
