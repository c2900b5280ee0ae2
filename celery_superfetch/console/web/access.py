"""Who may see the page and change something: a token, forms of its own, headers, host names."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ...errors import ConfigError
from ...model.log_text import one_line_each
from ..listener import names_loopback
from .origins import client_address, cookie_name, set_cookie
from .sessions import SESSION_S, Sessions

#: Characters that a token has at least: it is all that stands before the page.
SHORTEST = 12

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

logger = one_line_each(logging.getLogger(__name__))

UNKNOWN_PROXY = (
    "Login over https by a proxy that the page does not believe (address=%s): the cookie of the "
    "session lacks Secure, so a browser also sends it without https. If this is your proxy, start "
    "the page with --proxy %s."
)

#: Kinds of cookies: the id of a session; what the forms of a browser without a session stem from.
LOGIN, FORMS = "login", "forms"


class Access:
    """Says who may see the page, and whose forms are the page's own.

    Arguments:
        token: the token that a visitor has to give; None: each visitor may see the page.
        code: logs in once as ``?token=`` of the address, and is not the token itself: browsers keep
            an address in their history, although the page leads on from it at once, and proxies
            in their logs.
    """

    def __init__(self, token: str | None, code: str | None = None) -> None:
        if token is not None and len(token) < SHORTEST:
            raise ConfigError(f"a token of the page has at least {SHORTEST} characters")
        if token is not None and not token.isascii():  # each client encodes others its own way
            raise ConfigError("a token of the page has ASCII characters alone, as headers have")
        self._token = token or ""
        self._codes = [code] if code else []  # a list, whose pop() is atomic
        self._sessions = Sessions()

    def may_see(self, request: Request) -> bool:
        if not self._token:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(given):
            return True
        return self.session(request) is not None

    def session(self, request: Request) -> str | None:
        """Return the id of the browser's open session, if it has one."""
        session = request.cookies.get(cookie_name(request, LOGIN), "")
        return session if self._sessions.is_open(session) else None

    def is_token(self, given: str) -> bool:
        return bool(self._token) and _same(given, self._token)

    def redeem(self, given: str) -> bool:
        """Return whether this is the code of the address, which counts once."""
        if not any(_same(given, code) for code in self._codes):
            return False
        with suppress(IndexError):  # another thread has redeemed it just now
            return bool(self._codes.pop())
        return False

    def log_in(self, request: Request, response: Response) -> None:
        """Begin a session, and end the browser's last one."""
        self._sessions.end(self.session(request) or "")
        set_cookie(request, response, LOGIN, self._sessions.begin(), SESSION_S)
        if request.headers.get("x-forwarded-proto") == "https" != request.scope.get("scheme"):
            address = client_address(request)
            logger.warning(UNKNOWN_PROXY, address, address)

    def log_out(self, request: Request, response: Response) -> None:
        """End the browser's session, so that a copy of its cookie is worth nothing either."""
        self._sessions.end(self.session(request) or "")
        set_cookie(request, response, LOGIN, "", 0)

    def forms(self, request: Request) -> Forms:
        """Return what the forms in an answer to this browser stem from: its session, or else a
        cookie that it has or gets."""
        session = self.session(request)
        if session is not None:
            return Forms(session)
        cookie = request.cookies.get(cookie_name(request, FORMS), "")
        return Forms(cookie or secrets.token_urlsafe(24), is_new=not cookie)

    def is_own_form(self, request: Request, form: Mapping[str, list[str]]) -> bool:
        """Return whether a form has the key that this browser got in this session."""
        [given] = form.get("key", [""])[:1]
        return _same(given, self.forms(request).key)


@dataclass
class Forms:
    """The secret of which the hidden keys in the forms of one browser are made."""

    secret: str
    is_new: bool = False  #: whether the browser does not have it yet

    @property
    def key(self) -> str:
        """The key in each form. Another site cannot read it, nor the cookie from a page."""
        return hmac.new(self.secret.encode(errors="replace"), b"forms", hashlib.sha256).hexdigest()

    def keep(self, request: Request, response: Response) -> None:
        """Set the cookie by which the browser sends it with its forms."""
        if self.is_new:
            set_cookie(request, response, FORMS, self.secret)


def _same(given: str, meant: str) -> bool:
    """Compare in a time that depends on neither, nor on where they differ: by digests, since
    ``compare_digest`` shows the length."""
    digests = (hashlib.sha256(text.encode(errors="replace")).digest() for text in (given, meant))
    return hmac.compare_digest(*digests)


class Headers(BaseHTTPMiddleware):
    """Adds ``HEADERS`` to each answer that does not say otherwise."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response


class OwnNamesOnly(BaseHTTPMiddleware):
    """Middleware of a page without a token: answers only requests that name this machine."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if names_loopback(request.headers.get("host", "")):
            return await call_next(request)
        text = "This page answers to localhost alone. By another name it needs a token.\n"
        return PlainTextResponse(text, 421, HEADERS)
