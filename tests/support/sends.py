"""Every command that this process sends, as a test sees it. Only this file knows how commands are
pipelined; if that changes, this file changes, and no test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis

from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.pipeline import Command, Pipeline

if TYPE_CHECKING:
    import pytest  # a worker that imports this file has none

REPLY_LOST = "the reply was lost"


class Sends:
    """The commands that this process sends from here on, until the monkeypatch is undone.

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
        self._send_now = Pipeline.send
        #: True: the sender does not get the next replies.
        self.lose = False
        #: Replies that their sender has not read yet, in the order of its unread commands.
        self._replies: dict[Pipeline, list[Any]] = {}

        def send(
            pipeline: Pipeline, commands: Sequence[Command], *, wait: bool = True, leave: int = 0
        ) -> None:
            self._send(pipeline, commands, wait, leave)

        monkeypatch.setattr(Pipeline, "send", send)

    def _send(
        self, pipeline: Pipeline, commands: Sequence[Command], wait: bool, leave: int
    ) -> None:
        self._before()
        # Each command is carried out at once, also where its sender reads the reply later.
        earlier, pipeline._unread = pipeline._unread, []
        replies: list[Any] = []
        # A script that the server did not know would run behind its successors.
        calls = [command.call._replace(whole=True) for command in commands]
        try:
            self._send_now(pipeline, [Command(call, replies.append, int) for call in calls])
        finally:
            pipeline.release()  # all senders share one pool
        self._carried_out(calls, replies)
        waiting = self._replies.pop(pipeline, [])
        pipeline._unread = [*earlier, *commands]
        if self.lose and calls:  # without calls it only reads what is overdue
            self.lose = False
            pipeline.drop()
            raise redis.ConnectionError(REPLY_LOST)
        due = len(earlier) + len(commands) if wait else len(earlier)
        if commands and not wait and len(earlier) < leave:
            due = 0
        unread = [*waiting, *replies]
        for reply in unread[:due]:
            pipeline._unread.pop(0).on_reply(reply)
        self._replies[pipeline] = unread[due:]


@contextmanager
def replies_lost() -> Iterator[None]:
    """Let the server carry out what this process sends meanwhile, and lose the replies."""
    send = Pipeline.send

    def send_in_vain(pipeline: Pipeline, commands: Sequence[Command], **options: Any) -> None:
        unread, pipeline._unread = pipeline._unread, []
        ignoring = [command._replace(on_reply=lambda _: None, on_lost=int) for command in commands]
        send(pipeline, ignoring)
        pipeline._unread = [*unread, *commands]
        pipeline.drop()
        raise redis.ConnectionError(REPLY_LOST)

    Pipeline.send = send_in_vain
    try:
        yield
    finally:
        Pipeline.send = send
