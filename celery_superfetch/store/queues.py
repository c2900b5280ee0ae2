"""Jobs that wait and that no owner has claimed: on kombu's queue lists, and on probation.

A suspect is a job that may have crashed its worker. It is on probation: it waits in a list of its
own until a worker can run it alone. For that a worker may *quiesce*: claim nothing until its jobs
have ended. A *note* stores which job is the oldest of a queue list, and since when: messages do not
have their age.

The console's commands read lengths, ages and notes. A *pass* (one run) of a reaper calls
``note_waiting``. kombu's channel of this package (``transport/channel.py``) calls ``take`` for a
receiver that wants no acks, and ``purge``. ``app/dead_set.py`` calls ``can_take`` and ``note`` when
it retries dead jobs. A worker's fetch loop calls ``ask_quiesce``, in the thread of the event loop.
`superfetch rollback` calls ``Suspects.requeue``.

If the process dies in ``take``, the message is lost, as with stock kombu. Each suspect that
``requeue`` moves is in one list or in the other. A quiesce ends by itself, at the time limit that
the script has stored. The next pass writes the notes that are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from redis.exceptions import RedisError, ResponseError

from ..model.job import digest
from .database import Structure, chunks
from .paused_queues import PausedQueues

LISTS_PER_SCRIPT = 100  # queue lists of one script
#: Bytes of messages after which a script reads no further message: while it runs, the server
#: answers no other client.
MESSAGES_MAX_BYTES = 1024 * 1024
SUSPECTS_PER_TRIP = 50  # suspects that one round trip moves
#: Modes of oldest.lua: only read; also write the notes of the named lists; also return the names of
#: all lists that have a note.
MODE_READ, MODE_NOTE, MODE_NOTE_ALL = 0, 1, 2
NOTES_TTL_S = 86400  # seconds after which notes expire that no pass has renewed


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
        suspects = [self._or_empty(reply, 0) for reply in replies[1::2]]
        return list(zip(replies[::2], suspects, strict=True))

    def idle_s(self, names: Sequence[str]) -> dict[str, int]:
        """Return queue list -> seconds since a client last read or changed it (OBJECT IDLETIME).
        No job was pushed meanwhile, so each of its jobs is at least as old. Call it before
        ``lengths``, which reads the list. A list is left out if it does not exist, or if the server
        does not say: OBJECT is forbidden, or the server evicts by LFU."""
        ages = self._at_once(
            (("OBJECT", "IDLETIME", self.keys.queue(n)) for n in names), errors=True
        )
        return {n: age for n, age in zip(names, ages, strict=True) if isinstance(age, int)}

    def filled(self, names: Iterable[str]) -> list[str]:
        """Return those of these queue lists that have a job."""
        return [*self._sizes(names)]

    def oldest(self, names: Sequence[str], *, notes: bool = False) -> dict[str, float]:
        """Return queue list -> seconds since its oldest job was first found to be the oldest. The
        job is at least as old; its real age is in no message. With ``notes`` a job that is found
        for the first time is noted."""
        return self._ages([*names], MODE_NOTE if notes else MODE_READ)

    def note_waiting(self, names: Iterable[str]) -> dict[str, int]:
        """Note which job is the oldest of each of these queue lists, and of each list that has a
        note already; return how many jobs wait on each that has one. If none has, a few lists take
        one command. If the process dies midway, the next pass notes the others."""
        return self._sizes(self._ages(sorted(names), MODE_NOTE_ALL))

    def _sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many jobs wait on each of these queue lists; without those that are empty."""
        queue_lists = [*names]
        sizes = self._at_once([("LLEN", self.keys.queue(n)) for n in queue_lists], errors=True)
        rows = zip(queue_lists, sizes, strict=True)
        return {name: size for name, size in rows if isinstance(size, int) and size}

    def _ages(self, names: list[str], mode: int) -> dict[str, float]:
        """Run ``oldest.lua`` until it has examined all ``names``. With ``MODE_NOTE_ALL`` the first
        run returns the names of the lists that have a note: they are appended to ``names``, and the
        following runs examine them, too."""
        ages: dict[str, float] = {}
        at, keys, prefix = 0, [self.keys.oldest], self.keys.queue("")
        while at < len(names) or mode == MODE_NOTE_ALL:
            some = names[at : at + LISTS_PER_SCRIPT]
            # The server ms of now, and since when the oldest job of each list is that (0: there is
            # none, or it is not known); in mode ``MODE_NOTE_ALL`` also the lists with a note.
            (now, *since), noted = self.scripts.run(
                "oldest", keys, [prefix, mode, MESSAGES_MAX_BYTES, *some]
            )
            at += len(since)
            ages |= {n: (now - s) / 1000 for n, s in zip(some, since, strict=False) if s}
            if mode == MODE_NOTE_ALL:
                names += sorted({_text(name) for name in noted} - {*names})
                mode = MODE_NOTE
        return ages

    def noted(self) -> list[str]:
        """Return the queue lists that have a note: the last pass found a job there, or ``note``
        named the list. There may be no worker that consumes them."""
        names = self._read(self.client.hkeys, self.keys.oldest, empty=[])
        return [_text(name) for name in names]

    def add_notes(self, names: Iterable[str]) -> None:
        """Note that these queue lists may have jobs, so that the console's commands show them even
        if no worker consumes them; the next pass adds since when the jobs wait. An error of the
        server is ignored: the jobs are on their queues, and only the display would lack them."""
        oldest = self.keys.oldest
        commands = [("HSETNX", oldest, name, "") for name in names]
        with suppress(RedisError):
            self._at_once([*commands, ("EXPIRE", oldest, NOTES_TTL_S)])

    def pop_message(
        self, queue: str, names: Sequence[str], expires: int
    ) -> tuple[bytes, bool] | None:
        """Remove the next message of a queue without a claim, unless the queue is paused.

        If the process dies afterwards, the message is lost: its receiver asked for no ack.

        Arguments:
            names: its queue lists, from which a message is taken in this order.
            expires: ms of its x-expires, which each call renews (0: none).

        Returns:
            The message, and whether it was delivered before (it has a history); None if there is
            none, or the queue is paused.

        Raises:
            RedisError: the server did not answer; a message may be gone.
        """
        if PausedQueues(self.database).has(queue):
            return None
        keys = [self.keys.queue(name) for name in names]
        payload = next(filter(None, map(self.client.rpop, keys)), None)
        if expires:
            self._at_once(("PEXPIRE", key, expires) for key in keys)
        if payload is None:
            return None
        return payload, bool(self.client.exists(self.keys.history(digest(payload))))

    def ends(self, name: str, count: int) -> list[bytes]:
        """Return the ``count`` oldest and the ``count`` youngest messages of a queue list. In a
        short list a message is both: it is returned once."""
        key = self.keys.queue(name)
        spans = (-count, -1), (0, count - 1)
        oldest, youngest = self._at_once(("LRANGE", key, *span) for span in spans)
        return list(dict.fromkeys([*oldest, *youngest]))

    def purge(self, names: Sequence[str]) -> int:
        """Delete the suspects and the parked jobs of queue lists, in one transaction; return how
        many there were. The queue lists themselves stay: kombu's channel deletes them."""
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


class QuiesceAnswer(NamedTuple):
    """The answer to an owner (a process that claims jobs) that asks whether it has to quiesce for
    suspects."""

    no_suspects: bool  # no suspect waits that needs a quiesce
    quiesces: bool  # the owner claims nothing until it has no job left
    #: A suspect may run alongside other jobs now: an owner quiesced for it before, and that owner's
    #: jobs had not ended at the time limit.
    alongside: bool


class Suspects(Structure):
    """Jobs on probation (``superfetch:probation:<queue list>``), and the quiesce for them. A
    recovery puts a job here, and an owner claims it for a solo run."""

    def lists(self) -> frozenset[str]:
        """Return the queue lists with suspects."""
        names = self._read(self.client.smembers, self.keys.on_probation, empty=())
        return frozenset(name.decode(errors="replace") for name in names)

    def size(self, queue_list: str) -> int:
        """Return how many suspects of a queue list wait."""
        return int(self.client.llen(self.keys.probation(queue_list)))

    def ask_quiesce(
        self, owner: str, lists: Sequence[str], first_s: float, pause_factor: int
    ) -> QuiesceAnswer:
        """Ask the server whether this owner has to quiesce: to claim nothing until its jobs have
        ended, so that a suspect can run alone. One owner of the database quiesces at a time.

        Arguments:
            lists: queue lists from which the owner would claim a suspect. Empty: no suspect needs
                the owner's quiesce any more, and it ends now.
            first_s: time limit (s) of the first quiesce. If the owner's jobs have not ended by
                then, the limit of the next quiesce is twice as long.
            pause_factor: after a quiesce of T seconds no owner quiesces for ``pause_factor`` x T
                seconds.
        """
        keys = [self.keys.quiesce, self.keys.on_probation, *map(self.keys.probation, lists)]
        window, histories = int(self.config.strike_window), self.keys.history("")
        args = [
            owner,
            int(first_s * 1000),
            pause_factor,
            histories,
            window,
            MESSAGES_MAX_BYTES,
            *lists,
        ]
        answer, alongside = self.scripts.run("quiesce", keys, args)
        return QuiesceAnswer(no_suspects=answer < 0, quiesces=answer > 0, alongside=bool(alongside))

    def requeue(self, queue_list: str) -> int:
        """Move the suspects of a queue list to the front of that list; return how many there were.
        If the caller dies midway, each job is in one of the two lists, and a second call moves the
        others."""
        suspects, queue = self.keys.probation(queue_list), self.keys.queue(queue_list)
        size = self.size(queue_list)
        # The newest first, each to the front: the oldest is then the next to be claimed.
        for commands in chunks(
            [("LMOVE", suspects, queue, "LEFT", "RIGHT")] * size, SUSPECTS_PER_TRIP
        ):
            self._at_once(commands)
        return size
