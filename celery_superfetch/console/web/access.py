"""Who may see the page and change something: a token, forms of its own, headers, host names."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ...errors import ConfigError
from ..listener import names_loopback

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

LOGIN = "superfetch_login"
FORMS = "superfetch_forms"


class Access:
    """Says who may see the page, and whose forms are the page's own.

    Arguments:
        token: what whoever looks has to know; None: whoever gets here may look.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and len(token) < SHORTEST:
            raise ConfigError(f"a token of the page has at least {SHORTEST} characters")
        if token is not None and not token.isascii():  # each client encodes others its own way
            raise ConfigError("a token of the page has ASCII characters alone, as headers have")
        self._token = token or ""
        # The cookie is not the token: who reads it cannot log in elsewhere by it.
        self._pass = hmac.new(self._token.encode(), LOGIN.encode(), hashlib.sha256).hexdigest()

    def may_see(self, request: Request) -> bool:
        if not self._token:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given, self._token):
            return True
        return _same(request.cookies.get(LOGIN, ""), self._pass)

    def log_in(self, request: Request, given: str, response: Response) -> bool:
        """Whether this is the token; then the response lets this browser in from now on."""
        if not (self._token and _same(given, self._token)):
            return False
        # Lax: a link in a message leads to the page, not to the form.
        _set(request, response, LOGIN, self._pass, "lax")
        return True

    def form_key(self, request: Request) -> str:
        """What the forms of this browser have in them: no other site knows it."""
        return request.cookies.get(FORMS) or secrets.token_urlsafe(24)

    def give_form_key(self, request: Request, response: Response, key: str) -> None:
        if request.cookies.get(FORMS) != key:
            _set(request, response, FORMS, key, "strict")

    def is_own_form(self, request: Request, form: Mapping[str, list[str]]) -> bool:
        """Whether a form came from a page of ours in the same browser."""
        key, [given] = request.cookies.get(FORMS, ""), form.get("key", [""])[:1]
        near = request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        return near and bool(key) and _same(given, key)


def _same(given: str, meant: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), meant.encode())


def _set(request: Request, response: Response, name: str, value: str, site: str) -> None:
    response.set_cookie(
        name,
        value,
        path=request.scope.get("root_path") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax" if site == "lax" else "strict",
    )


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
        return PlainTextResponse(text, 421)
