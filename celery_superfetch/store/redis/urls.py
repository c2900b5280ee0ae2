"""Makes a Redis client from a broker's URL, which it reads as kombu does (the same options and
defaults), without importing kombu, which takes long to load.

``Inspector.at`` calls ``client_at``, for the probe that a container runs as its health check
(``console/probe.py`` with ``--broker``), in a process of its own. ``app/broker.py`` uses
``hiding_passwords``. Nothing is written: if the process dies, nothing has to be repaired.
"""

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
from .connections import Sentinels, following_params
from .slots import address_of, slot_of

PROVIDER_OPTION = "credential_provider"


@contextmanager
def hiding_passwords() -> Iterator[None]:
    """Raise UnsupportedBroker instead of ValueError for a URL that cannot be read. The errors of
    Python, kombu and redis-py may show a part of the URL's password: this one does not, and neither
    does its traceback."""
    try:
        yield
    except SuperfetchError:
        raise
    except ValueError:
        raise UnsupportedBroker(
            "the broker's URL cannot be read: percent-encode its password, and check that it "
            "begins with redis://, rediss:// or sentinel://, and that its port and database are "
            "numbers"
        ) from None


def _without_provider(url: str) -> tuple[str, CredentialProvider | None]:
    """Split the option ``credential_provider`` off a URL; return the URL without it, and the
    provider. kombu reads the option as the name of a class; redis-py would take that name for the
    provider itself.

    Raises:
        ConfigError: no such class can be imported, or it is no ``redis.CredentialProvider``.
    """
    parts = urlsplit(url)
    words = parse_qsl(parts.query, keep_blank_values=True)
    names = [value for name, value in words if name == PROVIDER_OPTION]
    if not names:
        return url, None
    module, _, attribute = names[-1].replace(":", ".").rpartition(".")
    if "" not in sys.path and os.getcwd() not in sys.path:
        # As Celery does: users' modules are mostly in the working directory.
        sys.path.append(os.getcwd())
    try:
        provider = getattr(import_module(module), attribute)()
    except Exception as exc:
        raise ConfigError(
            f"the credential_provider in the broker's URL, {names[-1]}, cannot be created "
            f"({type(exc).__name__}): name a class that this command can import"
        ) from exc
    if not isinstance(provider, CredentialProvider):
        raise ConfigError(
            f"the credential_provider in the broker's URL, {names[-1]}, is not a "
            "redis.CredentialProvider"
        )
    query = urlencode([(name, value) for name, value in words if name != PROVIDER_OPTION])
    # A provider replaces a user and a password in the URL, as with kombu.
    netloc = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=netloc, query=query)), provider


@hiding_passwords()
def client_at(url: str, master: str, prefix: str, timeout: float) -> Redis:
    """Return a client for a broker's URL. With Sentinels it is connected to the primary that they
    name now, and follows no failover.

    Arguments:
        master: the name of the primary, with sentinel://.
        prefix: the app's ``global_keyprefix``. If it has a hash tag, the client finds the node of a
            cluster that serves its slot.
        timeout: seconds to wait for each reply.
    """
    options: dict[str, Any] = {"socket_timeout": timeout, "retry": Retry(NoBackoff(), 0)}
    scheme, _, address = url.partition(":")
    if scheme == "redis+socket":
        return Redis.from_url(f"unix:{address.replace('virtual_host=', 'db=')}", **options)
    # A database that is no number raises ValueError here: redis-py would silently use database 0.
    int(urlsplit(url.partition(";")[0]).path.lstrip("/") or 0)
    options["socket_connect_timeout"] = timeout
    if scheme == "rediss":
        options["ssl_cert_reqs"] = "none"  # kombu's default, if the URL does not set it
    if scheme != "sentinel":
        url, provider = _without_provider(url)
        if provider is not None:
            options["credential_provider"] = provider
        # kombu's URLs have Python's names (CERT_REQUIRED), redis-py has its own (required).
        url = re.sub("=CERT_(NONE|OPTIONAL|REQUIRED)", lambda match: f"={match[1].lower()}", url)
        slot = slot_of(prefix, [address_of(url)])
        kind = SSLConnection if scheme == "rediss" else Connection
        return Redis.from_url(url, **following_params({**options, "connection_class": kind}, slot))
    if not master:
        raise ConfigError("--master is required with sentinel://: the name of the primary")
    urls = [sentinel for sentinel in url.split(";") if sentinel]
    host, port = Sentinels(
        master, [address_of(sentinel, 26379) for sentinel in urls]
    ).get_master_address()
    first = urlsplit(urls[0])
    # The primary is given the user, the password and the database of the first Sentinel's URL.
    primary = f"redis://{first.netloc.rpartition('@')[0]}@{first.path}"
    return Redis.from_url(primary, host=host, port=port, **options)
