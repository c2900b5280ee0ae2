"""The HTTP server of ``superfetch web``: uvicorn, with bounds on connections.

`superfetch web` (``console/commands/serving.py``) calls ``serve``. If the process dies, its
connections close.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..listener import BUSY_ANSWER, OpenConnections

#: Connections at a time: a browser has six at most.
PAGE_MAX_CONNECTIONS = 128

#: Seconds that a client has for its whole request, and to read an answer.
PAGE_WAIT_S = 10.0

#: Connections that are accepted in one tick of the loop. A client that sends its request at once is
#: read within three ticks: fewer than ``PAGE_MAX_CONNECTIONS`` come after it meanwhile, so it has
#: not waited for longest.
ACCEPTED_AT_ONCE = 32

#: Seconds that answers have when the page is told to stop.
STOP_S = 5


class BoundedProtocol(H11Protocol):
    """One connection of the page; ``open`` has those of its server."""

    open: ClassVar[OpenConnections[BoundedProtocol]]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        excess = self.open.add(self)
        if excess is self:
            self.transport.write(BUSY_ANSWER)
            self.transport.close()
        elif excess is not None:
            excess.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.remove(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._note_who_acts()

    def on_response_complete(self) -> None:
        self._note_who_acts()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._note_who_acts()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._note_who_acts()

    def _note_who_acts(self) -> None:
        """Record whether the page has to act, since it has a whole request, or the client."""
        cycle = self.cycle
        has_request = cycle is not None and not cycle.more_body and not cycle.response_complete
        if has_request and not self.flow.write_paused:
            self.open.begin(self)
        else:
            self.open.end(self)


class PageServer(uvicorn.Server):
    """A server that ends the connections of slow clients."""

    def __init__(self, app: Any, **options: Any) -> None:
        connections = OpenConnections[BoundedProtocol](PAGE_MAX_CONNECTIONS, PAGE_WAIT_S)
        self.open = connections
        config = uvicorn.Config(
            app,
            http=type("PageProtocol", (BoundedProtocol,), {"open": connections}),
            ws="none",  # it would take connections out of the bounds
            backlog=ACCEPTED_AT_ONCE,
            timeout_graceful_shutdown=STOP_S,
            log_level="warning",
            server_header=False,
            **options,
        )
        super().__init__(config)

    async def on_tick(self, counter: int) -> bool:
        """End connections that have waited for too long; uvicorn calls this ten times a second."""
        for connection in self.open.overdue():
            connection.transport.abort()
        return await super().on_tick(counter)


def serve(app: Any, sockets: Sequence[socket.socket], **options: Any) -> bool:
    """Serve the page until this process is told to stop; returns whether it could begin.

    Arguments:
        options: others of ``uvicorn.Config``.
    """
    server = PageServer(app, **options)
    server.run([*sockets])
    return bool(server.started)
