"""Jobs that wait and that no owner has claimed: on kombu's queue lists, and on probation.

A suspect is a job that may have crashed its worker. It is on probation: it waits in a list of its
own until a worker can run it alone.

The console's commands read lengths and ages. A reaper's pass calls ``note_waiting``. The channel
calls ``take`` for a receiver that wants no acks, and ``purge``. ``app/dead_set.py`` calls
``can_take`` and ``note`` when it retries dead jobs. A worker's fetch loop calls ``make_room``, in
the thread of the event loop. `superfetch drain` calls ``Suspects.requeue``.

If the process dies in ``take``, the message is lost, as with stock kombu. Each suspect that
``requeue`` moves is in exactly one of two lists. A quiesce ends by itself, at the time limit that
the script has stored. Notes that are missing are written by the next pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from redis.exceptions import RedisError, ResponseError

from ..model.job import digest
from .database import Structure, chunks

CHUNK = 100  # queue lists of one script
#: Bytes of messages after which a script reads no other message: while it runs, the server answers
#: no other client.
ROOM = 1024 * 1024
MOVED_AT_ONCE = 50  # suspects that one round trip moves
#: Modes of oldest.lua: only read; also write the notes of the named lists; also return the names of
#: all lists that have a note.
READ, NOTE, NOTE_ALL = 0, 1, 2
NOTED = 86400  # seconds after which notes expire that no pass has renewed


def _text(name: bytes) -> str:
    """Decode the name of a queue list, as far as it can be decoded."""
    return name.decode(errors="replace")


class Queues(Structure):
    """kombu's queue lists, and the notes on how long their oldest jobs have waited."""

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
        """Return queue list -> seconds since a client last read or changed it (OBJECT IDLETIME).
        Each of its jobs is at least as old. Call it before ``lengths``, which reads the list. A
        list is left out if it does not exist, or if the server does not say: OBJECT is forbidden,
        or the server evicts by LFU."""
        ages = self._at_once(
            (("OBJECT", "IDLETIME", self.keys.queue(n)) for n in names), errors=True
        )
        return {n: age for n, age in zip(names, ages, strict=True) if isinstance(age, int)}

    def filled(self, names: Iterable[str]) -> list[str]:
        """Return those of these queue lists that have a job."""
        queue_lists = [*names]
        sizes = self._at_once([("LLEN", self.keys.queue(n)) for n in queue_lists], errors=True)
        return [
            n for n, size in zip(queue_lists, sizes, strict=True) if isinstance(size, int) and size
        ]

    def oldest(self, names: Sequence[str], *, notes: bool = False) -> dict[str, float]:
        """Return queue list -> seconds since its oldest job was first seen as the oldest. The job
        is at least as old; its real age is in no message. With ``notes`` a job that is seen for the
        first time is noted."""
        return self._ages([*names], NOTE if notes else READ)

    def note_waiting(self, names: Iterable[str]) -> None:
        """Note which job is the oldest of each of these queue lists, and of each list that has a
        note already. A few lists take one command. If the process dies midway, the next pass notes
        the others."""
        self._ages(sorted(names), NOTE_ALL)

    def _ages(self, names: list[str], mode: int) -> dict[str, float]:
        """Run ``oldest.lua`` until it has examined all ``names``. In mode ``NOTE_ALL`` the first
        run returns the names of the lists that have a note: they are appended to ``names``, and the
        following runs examine them, too."""
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
        """Return the queue lists that have a note: the last pass saw a job wait there, or ``note``
        named the list. They may have no worker."""
        return [_text(name) for name in self.client.hkeys(self.keys.oldest)]

    def note(self, names: Iterable[str]) -> None:
        """Note that these queue lists may have jobs, so that the console's commands show them even
        if no worker consumes them; the next pass adds since when the jobs wait. An error of the
        server is ignored: the jobs were pushed before."""
        oldest = self.keys.oldest
        commands = [("HSETNX", oldest, name, "") for name in names]
        with suppress(RedisError):
            self._at_once([*commands, ("EXPIRE", oldest, NOTED)])

    def take(self, names: Sequence[str], expires: int) -> tuple[bytes, bool] | None:
        """Remove the next message of some queue lists, in their order, without a claim.

        If the process dies afterwards, the message is lost: its receiver asked for no ack.

        Args:
            names: the queue lists.
            expires: ms of the queue's x-expires, which each call renews (0: none).

        Returns:
            The message, and whether it was delivered before (it has a history); None if there is
            none.

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
        """Return the ``count`` oldest and the ``count`` youngest messages of a queue list. In a
        short list a message is both: it is returned once."""
        key = self.keys.queue(name)
        spans = (-count, -1), (0, count - 1)
        oldest, youngest = self._at_once(("LRANGE", key, *span) for span in spans)
        return list(dict.fromkeys([*oldest, *youngest]))

    def purge(self, names: Sequence[str]) -> int:
        """Delete the suspects and the parked jobs of queue lists, in one transaction; return how
        many there were."""
        keys = self.keys
        with self.client.pipeline() as pipe:
            for name in names:
                suspects, parked = keys.probation(name), keys.parked_of(name)
                pipe.llen(suspects).zcard(parked).delete(suspects, parked)
                pipe.srem(keys.on_probation, name).zrem(keys.parked, name)
            replies = pipe.execute()
        return sum(replies[::5]) + sum(replies[1::5])

    def can_take(self, names: Sequence[str]) -> list[bool]:
        """Return for each queue list whether a job can be pushed: the key is a list, or free."""
        kinds = self._at_once(("TYPE", self.keys.queue(name)) for name in names)
        return [kind in (b"list", b"none") for kind in kinds]


class Room(NamedTuple):
    """The answer to an owner that asks whether it has to quiesce for suspects."""

    none: bool  # there are no suspects
    quiesces: bool  # the owner claims nothing until it has no job left
    #: A suspect waits that may run alongside other jobs: an owner quiesced for it, and its jobs had
    #: not ended at the time limit.
    alongside: bool


class Suspects(Structure):
    """Jobs on probation (``superfetch:probation:<queue list>``), and the quiesce for them. A
    recovery puts a job here, and an owner claims it for a solo run."""

    def lists(self) -> frozenset[str]:
        """Return the queue lists with suspects."""
        names = self.client.smembers(self.keys.on_probation)
        return frozenset(name.decode(errors="replace") for name in names)

    def size(self, queue_list: str) -> int:
        """Return how many suspects of a queue list wait."""
        return int(self.client.llen(self.keys.probation(queue_list)))

    def make_room(
        self, owner: str, lists: Sequence[str], first_s: float, pause_factor: int
    ) -> Room:
        """Ask the server whether this owner has to quiesce: to claim nothing until its jobs have
        ended, so that a suspect can run alone. One owner of the database does at a time.

        Arguments:
            lists: queue lists from which the owner would claim a suspect. Empty: no suspect needs
                the owner's quiesce any more, and it ends now.
            first_s: seconds that the first quiesce lasts at most. If it was in vain, the next one
                lasts twice as long.
            pause_factor: for so many times the length of a quiesce no owner quiesces after it.
        """
        keys = [self.keys.rest, self.keys.on_probation, *map(self.keys.probation, lists)]
        window, histories = int(self.config.strike_window), self.keys.recoveries("")
        args = [owner, int(first_s * 1000), pause_factor, histories, window, ROOM, *lists]
        answer, alongside = self.scripts.run("make_room", keys, args)
        return Room(none=answer < 0, quiesces=answer > 0, alongside=bool(alongside))

    def requeue(self, queue_list: str) -> int:
        """Move the suspects of a queue list to its front; return how many there were. If the caller
        crashes midway, each job is in one of the two lists, and a second call moves the rest."""
        suspects, queue = self.keys.probation(queue_list), self.keys.queue(queue_list)
        size = self.size(queue_list)
        # The newest first, each to the front: the oldest is then the next to be claimed.
        for commands in chunks([("LMOVE", suspects, queue, "LEFT", "RIGHT")] * size, MOVED_AT_ONCE):
            self._at_once(commands)
        return size
