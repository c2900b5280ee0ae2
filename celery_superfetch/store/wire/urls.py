"""A client by a broker's URL as kombu has them, for who loads no kombu."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis import Connection, CredentialProvider, Redis, SSLConnection
from redis.backoff import NoBackoff
from redis.retry import Retry

from ...errors import ConfigError, SuperfetchError, UnsupportedBroker
from .connections import Sentinels, leading_home
from .slots import address_of, slot_of

PROVIDER = "credential_provider"


@contextmanager
def legible() -> Iterator[None]:
    """Say what is wrong with a URL that cannot be read. What Python, kombu and redis-py say of one
    may hold a part of its password: that is in no text of ours, nor in a traceback."""
    try:
        yield
    except SuperfetchError:
        raise
    except ValueError:
        raise UnsupportedBroker(
            "the broker's URL cannot be read: percent-encode its password, and see that it begins "
            "with redis://, rediss:// or sentinel://, and that its port and database are numbers"
        ) from None


def _without_provider(url: str) -> tuple[str, CredentialProvider | None]:
    """Split off what gives user and password, which kombu takes by ``?credential_provider=`` as the
    name of a class; redis-py would take that name for the provider itself.

    Raises:
        ConfigError: no such class can be imported, or it is none of redis-py's kind.
    """
    parts = urlsplit(url)
    words = parse_qsl(parts.query, keep_blank_values=True)
    names = [value for name, value in words if name == PROVIDER]
    if not names:
        return url, None
    module, _, attribute = names[-1].replace(":", ".").rpartition(".")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as Celery does, where a user's modules mostly are
    try:
        provider = getattr(import_module(module), attribute)()
    except Exception as exc:
        raise ConfigError(
            f"the credential_provider of the broker's URL, {names[-1]}, cannot be made "
            f"({type(exc).__name__}): name a class that this command can import"
        ) from exc
    if not isinstance(provider, CredentialProvider):
        raise ConfigError(
            f"the credential_provider of the broker's URL, {names[-1]}, is no "
            "redis.CredentialProvider"
        )
    rest = urlencode([(name, value) for name, value in words if name != PROVIDER])
    # It takes the place of a user and a password, as in kombu.
    netloc = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=netloc, query=rest)), provider


@legible()
def client_at(url: str, master: str, prefix: str, timeout: float) -> Redis:
    """It waits ``timeout`` seconds for each reply. ``master``: the primary's name, with sentinel://;
    ``prefix``: the app's ``global_keyprefix``, by which a node of a cluster is found."""
    limits: dict[str, Any] = {"socket_timeout": timeout, "retry": Retry(NoBackoff(), 0)}
    scheme, _, rest = url.partition(":")
    if scheme == "redis+socket":
        return Redis.from_url(f"unix:{rest.replace('virtual_host=', 'db=')}", **limits)
    int(urlsplit(url.partition(";")[0]).path.lstrip("/") or 0)  # redis-py would take it for 0
    limits["socket_connect_timeout"] = timeout
    if scheme == "rediss":
        limits["ssl_cert_reqs"] = "none"  # kombu's default, where the URL says nothing
    if scheme != "sentinel":
        url, provider = _without_provider(url)
        if provider is not None:
            limits["credential_provider"] = provider
        # kombu has Python's names of what to verify
        url = re.sub("=CERT_(NONE|OPTIONAL|REQUIRED)", lambda match: f"={match[1].lower()}", url)
        slot = slot_of(prefix, [address_of(url)])
        kind = SSLConnection if scheme == "rediss" else Connection
        return Redis.from_url(url, **leading_home({**limits, "connection_class": kind}, slot))
    if not master:
        raise ConfigError("--master has to name the primary of sentinel://")
    urls = [sentinel for sentinel in url.split(";") if sentinel]
    host, port = Sentinels(
        master, [address_of(sentinel, 26379) for sentinel in urls]
    ).get_master_address()
    first = urlsplit(urls[0])
    home = f"redis://{first.netloc.rpartition('@')[0]}@{first.path}"  # credentials and database
    return Redis.from_url(home, host=host, port=port, **limits)
