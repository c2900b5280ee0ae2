"""The price of a wrong token: a delay, for the client that sent it and for no other.

``page`` calls it, in the event loop. It is in this process's memory alone.
"""

from __future__ import annotations

import logging

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ...model.log_text import one_line_each
from .origins import client_address

logger = one_line_each(logging.getLogger(__name__))

#: Seconds that the answer to a wrong token takes.
WRONG_TOKEN_S = 1.0

#: Answers to wrong tokens that are delayed at a time: each holds a connection.
DELAYED_MOST = 20


class Guesses:
    """The delays of answers to wrong tokens, so that trying many takes long."""

    def __init__(self) -> None:
        self._delayed_count = 0

    async def refuse(self, request: Request) -> None:
        """Log a wrong token, and wait; other requests are answered meanwhile. Raises HTTPException
        if too many wait."""
        if self._delayed_count >= DELAYED_MOST:
            headers = {"retry-after": "1"}
            raise HTTPException(429, "Too many wrong tokens: try again in a second.", headers)
        logger.warning(
            "Wrong token for the page (address=%s): refused. If this repeats, the token may be "
            "under attack: block that address.",
            client_address(request),
        )
        self._delayed_count += 1
        try:
            await anyio.sleep(WRONG_TOKEN_S)
        finally:
            self._delayed_count -= 1
