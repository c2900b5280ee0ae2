"""Access to the page: the token, sessions, keys of its own forms, headers and host names.

``page`` asks it at each request. Sessions are in this process's memory: a restart ends them.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
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

#: A name of a token; empty: it has none.
TOKEN_NAME = re.compile(r"[\w.@+-]{0,64}")

#: Characters that a token has at least: nothing else protects the page.
TOKEN_MIN_CHARS = 12

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
    "Login over https through an untrusted proxy (address=%s): the session cookie lacks Secure, "
    "so browsers also send it without https. If this is your proxy, start the page with --proxy "
    "%s."
)

#: Kinds of cookies: the id of a session; what the forms of a browser without a session stem from.
LOGIN, FORMS = "login", "forms"


class Access:
    """The rules of access to one page.

    Arguments:
        tokens: name -> the token that a visitor has to give; an empty name: the token has none. No
            tokens: each visitor may see the page.
        code: logs in once as ``?token=`` of the address, and is not the token itself: browsers keep
            an address in their history, although the page leads on from it at once, and proxies
            in their logs.
    """

    def __init__(self, tokens: Mapping[str, str], code: str | None = None) -> None:
        for name, token in tokens.items():
            which = f"token {name!r} of the page" if name else "the token of the page"
            if not TOKEN_NAME.fullmatch(name):
                raise ConfigError(
                    "the name of a token must have up to 64 letters, digits and . _ @ + -, got "
                    f"{name!r}"
                )
            if len(token) < TOKEN_MIN_CHARS:
                raise ConfigError(
                    f"{which} must have at least {TOKEN_MIN_CHARS} characters, got {len(token)}"
                )
            if not token.isascii():  # clients encode other characters differently
                raise ConfigError(f"{which} must consist of ASCII characters, as HTTP headers do")
        if len({*tokens.values()}) < len(tokens):
            raise ConfigError(
                f"two tokens of the page are the same ({', '.join(filter(None, tokens))}): the "
                "audit list would not know which of them made a change"
            )
        self._tokens = dict(tokens)
        self._codes = [code] if code else []  # a list, whose pop() is atomic
        self._sessions = Sessions()

    def may_see(self, request: Request) -> bool:
        return not self._tokens or self.visitor(request) is not None

    def visitor(self, request: Request) -> str | None:
        """Return the name of the token by which a request is admitted, empty if it has none; None:
        by no token."""
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        name = self.name_of(sent) if kind.lower() == "bearer" else None
        return self._sessions.name_of(self._cookie(request)) if name is None else name

    def session(self, request: Request) -> str | None:
        """Return the id of the browser's open session, if it has one."""
        session = self._cookie(request)
        return session if self._sessions.is_open(session) else None

    def _cookie(self, request: Request) -> str:
        return request.cookies.get(cookie_name(request, LOGIN), "")

    def name_of(self, sent: str) -> str | None:
        """Return the name of a token; None if it is no token. It compares with all of them, so that
        the time it takes does not say which are alike."""
        found = [name for name, token in self._tokens.items() if _same(sent, token)]
        return found[0] if found else None

    def redeem(self, sent: str) -> bool:
        """Return whether this is the code of the address, which counts once."""
        if not any(_same(sent, code) for code in self._codes):
            return False
        with suppress(IndexError):  # another thread has redeemed it just now
            return bool(self._codes.pop())
        return False

    def log_in(self, request: Request, response: Response, name: str) -> None:
        """Begin a session, and end the browser's last one. ``name``: of the token."""
        self._sessions.end(self.session(request) or "")
        set_cookie(request, response, LOGIN, self._sessions.begin(name), SESSION_S)
        if request.headers.get("x-forwarded-proto") == "https" != request.scope.get("scheme"):
            address = client_address(request)
            logger.warning(UNKNOWN_PROXY, address, address)

    def log_out(self, request: Request, response: Response) -> None:
        """End the browser's session, so that a copy of its cookie is worth nothing either."""
        self._sessions.end(self.session(request) or "")
        set_cookie(request, response, LOGIN, "", 0)

    def forms(self, request: Request) -> Forms:
        """Return the secret for the forms in an answer to this browser: from its session, or from
        a cookie that it has or gets."""
        session = self.session(request)
        if session is not None:
            return Forms(session)
        cookie = request.cookies.get(cookie_name(request, FORMS), "")
        return Forms(cookie or secrets.token_urlsafe(24), is_new=not cookie)

    def is_own_form(self, request: Request, form: Mapping[str, list[str]]) -> bool:
        """Return whether a form has the key that this browser got in this session."""
        [sent] = form.get("key", [""])[:1]
        return _same(sent, self.forms(request).key)


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


def _same(sent: str, meant: str) -> bool:
    """Compare in a time that depends on neither, nor on where they differ: by digests, since
    ``compare_digest`` shows the length."""
    digests = (hashlib.sha256(text.encode(errors="replace")).digest() for text in (sent, meant))
    return hmac.compare_digest(*digests)


class Headers(BaseHTTPMiddleware):
    """Middleware: adds those ``HEADERS`` to each answer that it does not have."""

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
        text = "This page is served to localhost only. Under another name it needs a token.\n"
        return PlainTextResponse(text, 421, HEADERS)
