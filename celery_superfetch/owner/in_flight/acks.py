"""Acks, and records of what starts, on their way: sent without waiting, kept until answered."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ...model.job import Claimed, Job
from ...model.process import own_pid
from ...store.private_lists import PrivateLists
from ...store.wire.scripts import Call, Line

#: Seconds, and number of jobs, for which settled jobs are remembered. A replica that is promoted
#: lags by seconds.
SETTLED = 120.0
SETTLED_MOST = 10_000

#: Replies to acks that are left to be read together: a look at the socket costs as much as a send.
LEFT_MOST = 16


@dataclass
class Answers:
    """What the server said."""

    #: Jobs that left their private list, or were not there any more.
    settled: list[Job] = field(default_factory=list)
    #: Those that were not there, which is news: they had been taken away.
    lost: list[Job] = field(default_factory=list)
    #: Why acks were refused; they wait to be sent again.
    refused: Exception | None = None
    #: The reply to the call that was sent behind them.
    last: Any = None


@dataclass
class _Sent:
    """What one script was sent with."""

    acks: list[Claimed]
    #: Job -> its digest.
    starting: dict[Job, str]


class Acks:
    """The acks of one process. Not thread-safe: ``Settling`` sees to that.

    Arguments:
        aside: the jobs that may be held aside.
    """

    def __init__(self, lists: PrivateLists, aside: Container[Job] = ()) -> None:
        self.lists = lists
        self.aside = aside
        self._line = Line(lists.scripts)
        self._pid = own_pid()
        #: What the next ``send`` settles.
        self.waiting: list[Claimed] = []
        #: Jobs that are about to run, and are to be recorded as running -> their digests.
        self._starting: dict[Job, str] = {}
        #: Those of both whose replies are still to be read.
        self._sent: list[_Sent] = []
        #: Jobs of which finding nothing says nothing: a reply to their ack was lost, or it is
        #: known that they were taken away.
        self._no_news: set[Job] = set()
        #: Jobs settled lately, and when (monotonic s).
        self._lately: deque[tuple[float, tuple[str, str, int]]] = deque(maxlen=SETTLED_MOST)

    def __iter__(self) -> Iterator[Job]:
        for acks in (*(sent.acks for sent in self._sent), self.waiting):
            yield from (job for job, _ in acks)

    def __len__(self) -> int:
        return sum(len(sent.acks) for sent in self._sent) + len(self.waiting)

    @property
    def overdue(self) -> bool:
        """Whether nobody has come by for long to read the replies to some."""
        return self._line.overdue

    @property
    def unsent(self) -> bool:
        """Whether some wait to be sent."""
        return bool(self.waiting or self._starting)

    @property
    def unread(self) -> bool:
        """Whether replies wait to be read."""
        return bool(self._line.owes)

    def add(self, claimed: Claimed) -> None:
        """Settle this one with the next ``send``; it does not run (any more)."""
        self.waiting.append(claimed)
        self._starting.pop(claimed.job, None)

    def start(self, job: Job, digest: str) -> None:
        """Record this one as running with the next ``send``."""
        self._starting[job] = digest

    def forget_start(self, job: Job) -> None:
        """It does not run (any more)."""
        for starting in self._records():
            starting.pop(job, None)

    def forget_starts_of(self, owner: str) -> None:
        """It was taken for dead, and what it has recorded is not to come back."""
        for starting in self._records():
            for job in [job for job in starting if job.owner == owner]:
                del starting[job]

    def _records(self) -> Iterator[dict[Job, str]]:
        """What is to be recorded, and what may be by now."""
        yield self._starting
        for sent in self._sent:
            yield sent.starting

    def send(
        self, before: Sequence[Call], last: Call | None = None, *, wait: bool = True
    ) -> Answers:
        """Send what waits, in one round trip with other calls.

        Arguments:
            last: to be sent behind them; with ``wait`` only.
            wait: for the replies; else a later ``send`` reads them.

        Raises:
            BaseException: whatever came instead of a reply (a greenlet that is killed, a signal's);
                the acks are sent again.
        """
        if self._pid != own_pid():  # the connection, and what it owes, are the parent's
            self._pid, self._line, self._sent = own_pid(), Line(self.lists.scripts), []
        now_sent = self._to_send()
        calls = [
            *before,
            *(self.lists.ack(part.acks, part.starting, self.aside) for part in now_sent),
            *([last] if last else ()),
        ]
        answers = Answers()
        if not calls and not self._line.owes:
            return answers
        sent, self._sent = self._sent + now_sent, []
        try:
            owed, theirs = self._line.exchange(calls, wait=wait, leave=LEFT_MOST)
            read = owed + theirs[len(before) :][: len(now_sent)]
            refused: list[_Sent] = []
            for part, reply in zip(sent if wait else sent[: len(read)], read, strict=True):
                refused += self._answered(part, reply, answers)
        except BaseException:
            if self._line.owes:  # what it still owes is nobody's any more
                self._line.forget()
            self._unanswered([*sent, *self._sent])
            raise
        if self._sent:  # by a signal's handler, while this waited: its connection was given up
            self._unanswered(self._sent)
        self._sent = sent[len(read) :]
        if refused:
            self._send_again(refused)
        answers.last = theirs[-1] if theirs else None
        return answers

    def _unanswered(self, parts: Sequence[_Sent]) -> None:
        """Nobody can say what became of these; they are sent again."""
        self._sent = []
        self._no_news.update(job for part in parts for job, _ in part.acks)
        self._send_again(parts)

    def _to_send(self) -> list[_Sent]:
        """What waits, if anything."""
        if not self.unsent:
            return []
        sent = _Sent(self.waiting, self._starting)
        self.waiting, self._starting = [], {}
        return [sent]

    def _send_again(self, parts: Sequence[_Sent]) -> None:
        for part in reversed(parts):
            self.waiting = part.acks + self.waiting
            self._starting = {**part.starting, **self._starting}
        for job in self:  # of one that has ended, only its ack
            self._starting.pop(job, None)

    def _answered(self, sent: _Sent, reply: Any, answers: Answers) -> list[_Sent]:
        """Sort out a reply; what it refused."""
        if isinstance(reply, Exception):
            answers.refused = reply
            return [sent]
        now, missing = monotonic(), set(reply)
        for at, (job, _) in enumerate(sent.acks, 1):
            answers.settled.append(job)
            self._lately.append((now, job.trace))
            if at in missing and job not in self._no_news:
                answers.lost.append(job)
            self._no_news.discard(job)
        return []

    def rest(self) -> None:
        """Leave the connection to whoever looks after idle ones."""
        if not self._line.owes:
            self._line.give_back()

    def announced(self, jobs: Iterable[Job]) -> None:
        """Note that it is known already that these were taken away."""
        self._no_news.update(jobs)

    def settled_lately(self, jobs: Iterable[Job]) -> list[Job]:
        """Of these, those that were settled lately, as often as they were.

        By their bytes: a private list has nothing else. So for a server that was told otherwise.
        """
        now = monotonic()
        lately = Counter(what for at, what in self._lately if now - at < SETTLED)
        again = []
        for job in jobs:
            if lately[job.trace] > 0:
                lately[job.trace] -= 1
                again.append(job)
        return again
