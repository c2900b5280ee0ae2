"""Every script that this process sends, as a test sees it. Only this file knows how scripts are
pipelined; if that changes, this file changes, and no test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis

from celery_superfetch.store.wire.scripts import Call, Line

if TYPE_CHECKING:
    import pytest  # a worker that imports this file has none

REPLY_LOST = "the reply was lost"


class Sends:
    """The scripts that this process sends from here on, until the monkeypatch is undone.

    Arguments:
        before: is called before each send.
        carried_out: gets the calls and replies of each send before its sender does.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        before: Callable[[], None],
        carried_out: Callable[[Sequence[Call], Sequence[Any]], None],
    ) -> None:
        self._before, self._carried_out = before, carried_out
        self._exchange = Line.exchange
        #: True: the sender does not get the next replies.
        self.lose = False
        #: Replies that their sender has not read yet.
        self._unread: dict[Line, list[Any]] = {}

        def exchange(
            line: Line, calls: Sequence[Call], *, wait: bool = True, leave: int = 0
        ) -> tuple[list[Any], list[Any]]:
            return self._send(line, calls, wait, leave)

        monkeypatch.setattr(Line, "exchange", exchange)

    def _send(
        self, line: Line, calls: Sequence[Call], wait: bool, leave: int
    ) -> tuple[list[Any], list[Any]]:
        self._before()
        # Each script is carried out at once, also where its sender reads the reply later.
        earlier = self._unread.pop(line, [])
        owed, line.owed = line.owed, []
        try:
            # A script that the server did not know would run behind its successors.
            _, replies = self._exchange(line, [call._replace(whole=True) for call in calls])
        finally:
            line.release()  # all senders share one pool
        self._carried_out(calls, replies)
        if self.lose and calls:  # without calls it only reads what is overdue
            self.lose = False
            raise redis.ConnectionError(REPLY_LOST)
        if wait:
            return earlier, replies
        if calls and len(earlier) < leave:
            self._unread[line] = [*earlier, *replies]
            line.owed = [*owed, *calls]
            return [], []
        self._unread[line] = replies
        line.owed = [*calls]
        return earlier, []


@contextmanager
def replies_lost() -> Iterator[None]:
    """Let the server carry out what this process sends meanwhile, and lose the replies."""
    exchange = Line.exchange

    def exchange_in_vain(line: Line, calls: Sequence[Call], **options: Any) -> Any:
        exchange(line, calls, **options)
        raise redis.ConnectionError(REPLY_LOST)

    Line.exchange = exchange_in_vain
    try:
        yield
    finally:
        Line.exchange = exchange
