"""What is on its way to the server, in the order in which it must come there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from redis.exceptions import RedisError

from ...model.job import Claimed, Earlier, Job
from ...store.private_lists import PrivateLists
from ...store.wire.scripts import Call
from .acks import Acks
from .held import Held
from .jobs import Jobs, Move, State
from .losses import announce
from .requeues import Returns


class Outbox:
    """Acks, requeues, records of what starts and moves out of the way. Not thread-safe:
    ``InFlight`` sees to that.

    First goes what is given back, then what is moved aside, then acks and starts, then a claim:
    each relies on those before it.

    Arguments:
        expires: ms of x-expires for each queue list that has it.
    """

    def __init__(self, lists: PrivateLists, jobs: Jobs, expires: dict[str, int]) -> None:
        self.lists = lists
        self.jobs = jobs
        self.aside = Held(lists)
        self.acks = Acks(lists, self.aside)
        self.returns = Returns(lists, expires)
        #: A reply was lost: the private lists may hold jobs that nobody here knows.
        self.doubt = False

    @property
    def unsent(self) -> bool:
        """Whether something waits for the next round trip."""
        return bool(self.acks.unsent or self.returns or self.aside)

    @property
    def unread(self) -> bool:
        """Whether answers to what was sent wait to be read."""
        return self.acks.unread

    @property
    def oldest_ack(self) -> Job | None:
        """The first of the acks that wait to be sent."""
        return next((job for job, _ in self.acks.waiting), None)

    @property
    def settlements(self) -> Mapping[str, int]:
        """How much waits to be sent, or to be answered: acks and returns."""
        return {"acks": len(self.acks), "returns": len(self.returns)}

    # -- how a job leaves

    def ack(self, claimed: Claimed) -> None:
        """Settle a job with whatever is sent next; one that is not held is not ours."""
        if self.jobs.move(claimed.job, Move.ACK):
            self.returns.forget(claimed.job)
            self.acks.add(claimed)

    def settle_again(self, jobs: Iterable[Job]) -> list[Job]:
        """Ack those of these jobs that were settled lately; returns the others."""
        jobs = list(jobs)
        again = self.acks.settled_lately(jobs)
        for job in again:
            self.ack(Claimed(job, Earlier()))
        return [job for job in jobs if self.jobs.state(job) is not State.SETTLED]

    def requeue(self, jobs: Iterable[Job], where: str) -> None:
        """Give jobs back, in the order given; what cannot be now is, as soon as that can be."""
        for job in jobs:
            if self.jobs.move(job, Move.REQUEUE) is State.RETURNING:
                self.returns.add(job, where)
        try:
            self._send_returns()
        except RedisError as exc:
            self.returns.warn(exc)

    def drop(self, job: Job) -> None:
        """It has left the private list, or was never started."""
        self.jobs.drop(job)
        self.acks.forget_start(job)
        self.returns.forget(job)
        self.aside.forget(job)

    # -- round trips

    def _send_returns(self) -> None:
        """Send the requeues that wait.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked.
        """
        if not self.returns:
            return
        try:
            gone = self.returns.send()
        except BaseException:
            # They may have gone, and have been claimed anew by who took it for one of them.
            self.doubt = True
            raise
        for job in gone:
            self.drop(job)

    def send(self, last: Call | None = None, *, wait: bool = True, returns: bool = True) -> Any:
        """Send all that waits, and then ``last``, whose reply it returns.

        Arguments:
            returns: what is given back, too.

        Raises:
            redis.exceptions.RedisError: no reply came, or the acks were refused.
        """
        if returns:
            self._send_returns()
        if self.acks.overdue:
            # Their connection may be lost by now, which is no reason not to ask on another.
            with contextlib.suppress(RedisError):
                self._exchange([])
            self.acks.rest()
        moves = self.aside.hold()
        # A server that does not know the script of a move is told it with the answer. By then the
        # job may be back on its queue, and claimed again.
        return self._exchange(moves, last, wait=wait or bool(moves))

    def _exchange(self, moves: list[Call], last: Call | None = None, *, wait: bool = True) -> Any:
        try:
            answers = self.acks.send(moves, last, wait=wait)
        except BaseException:
            self.doubt = True
            raise
        for job in answers.settled:
            self.drop(job)
        for job in answers.lost:
            announce(job, self.lists)
        if answers.refused is not None:
            self.doubt = self.doubt or last is not None  # nobody reads what a claim brought
            raise answers.refused
        return answers.last

    def bring_back(self, job: Job) -> None:
        """Have a job in its private list, where whatever is done to it looks for it.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        with contextlib.suppress(RedisError):  # what was refused has not come either
            # The record of its start may be on its way, and must not come in behind what
            # removes it.
            self.send(returns=False)
        self.lists.scripts.run_all(self.aside.unhold(job))
        self.aside.forget(job)
