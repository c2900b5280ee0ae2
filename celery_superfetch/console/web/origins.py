"""The origin of a request, and the root and the cookies of the page for it.

``page``, ``access`` and ``guesses`` call it. Pure functions.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

DEFAULT_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str, int]


def is_from_page(request: Request) -> bool:
    """Return whether a browser says that a page of this origin has sent the request.

    A browser attests it by ``Sec-Fetch-Site``, which no page can set. An old browser, and any over
    plain http beyond localhost, sends ``Origin`` or ``Referer`` instead. If none of the three is
    there, nothing is known, and a page of another port could have sent it.
    """
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    sender = headers.get("origin") or headers.get("referer") or ""
    return _origin(sender) == own_origin(request) is not None


def own_origin(request: Request) -> Origin | None:
    """Return the scheme, host and port at which a browser has asked for the page; None if the
    ``Host`` is none."""
    return _origin(f"{_scheme(request)}://{request.headers.get('host', '')}")


def _origin(url: str) -> Origin | None:
    with suppress(ValueError):  # a port that is no number, a bracket that stays open
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme)
        if parts.hostname and port and parts.scheme in DEFAULT_PORTS:
            return parts.scheme, parts.hostname, port
    return None


def client_address(request: Request) -> str:
    """Return the address of a client as a log may have it. Proxies pass on what a client says of
    itself: as it stands, it could speak to an operator's terminal."""
    address = request.client.host if request.client else ""
    with suppress(ValueError):
        return ip_address(address.partition("%")[0]).compressed
    return "unknown"


def page_root(request: Request) -> str:
    """Return the way to the page's root, relative to the request: a proxy may put the page
    anywhere, and no ``Host`` of a request counts."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return "../" * (path.count("/") - 1) or "./"


def cookie_name(request: Request, kind: str) -> str:
    """Return the name of the page's cookie of this kind: ``__Host-superfetch_login_8443``.

    Browsers send a cookie to each port of a host. If two pages on two ports had one name, a login
    at one would end the session at the other. So it has the port in it that the browser has asked
    for, or else that of the listener, and a digest of the path that the page is mounted at. Behind
    https ``__Host-`` keeps a page of another port or subdomain from planting one.
    """
    port = None
    with suppress(ValueError):
        port = urlsplit(f"//{request.headers.get('host', '')}").port
    port = port or (request.scope.get("server") or (None, None))[1]
    root = request.scope.get("root_path", "")
    digest = hashlib.sha256(root.encode(errors="replace")).hexdigest()[:8] if root else None
    name = "_".join(str(part) for part in ("superfetch", kind, port, digest) if part)
    return f"__Host-{name}" if _scheme(request) == "https" else name


def set_cookie(
    request: Request, response: Response, kind: str, value: str, lasts_s: int | None = None
) -> None:
    """Set a cookie of this kind, which the browser keeps for as long; 0: it drops the cookie.

    ``Lax``, so that a link in a message leads to the page, and not to its login form or to new keys
    for the forms of other tabs.
    """
    https = _scheme(request) == "https"
    response.set_cookie(
        cookie_name(request, kind),
        value,
        max_age=lasts_s,
        # A cookie whose name begins with __Host- must have this path.
        path="/" if https else quote(request.scope.get("root_path", "")) or "/",
        secure=https,
        httponly=True,
        samesite="lax",
    )


def _scheme(request: Request) -> str:
    return str(request.scope.get("scheme", "http"))
