"""Reads and parses forms, within bounds on their size. ``page`` calls it."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

#: Bytes of a form with the ids of many pages of jobs; and of one without ids, such as the login's.
FORM_MAX_BYTES, SMALL_FORM_MAX_BYTES = 1_000_000, 4_096

#: An id takes 40 bytes and more.
FORM_MAX_FIELDS = 25_000

NOTHING_TO_DO = "This form asks for no known action. Reload the page and try again."

TOO_MUCH = "This form is too large. Select fewer jobs."

Form = dict[str, list[str]]


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body of a request. Raises HTTPException if it is larger, or never comes whole."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise HTTPException(413, TOO_MUCH)
    except ClientDisconnect as exc:  # as an error of the page, it would log a traceback each time
        raise HTTPException(400, "The client disconnected before its form was complete.") from exc
    return bytes(body)


def parse_form(body: bytes) -> Form:
    """Parse a form. A large one takes a third of a second, so call this in a thread."""
    try:
        return parse_qs(body.decode(errors="replace"), max_num_fields=FORM_MAX_FIELDS)
    except ValueError as exc:
        raise HTTPException(413, TOO_MUCH) from exc
