"""Advice on errors of the Redis server, for the person who reads them: ``advice_for``.

The command line, the console's probe and its metrics call it, each in a process of its own, to
print a broker's error. It only maps texts: nothing is sent to Redis, and a death of the process
leaves nothing.
"""

from __future__ import annotations

from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, TimeoutError

from .tls import WrongScheme

NO_PASSWORD = "the server wants a password: put it into the URL, redis://:PASSWORD@host"

#: Part of an error of the server, of a managed service or of the resolver, in lower case -> what to
#: do. The first part that is in the error's text counts.
ADVICE_BY_TEXT = {
    "wrongpass": "the user or the password in the URL is wrong",
    "noauth": NO_PASSWORD,
    "authentication required": NO_PASSWORD,  # redis-py's text for NOAUTH
    "hello must be called": NO_PASSWORD,  # the server's text with RESP3
    "invalid password": "the password in the URL is wrong",
    "oom command": "the server is full and refuses writes: raise maxmemory, or see which queue or "
    "result grows",
    "max number of clients": "the server has no connection left: raise maxclients, or see which "
    "program opens so many",
    "max concurrent connections": "the plan has no connection left: see which program "
    "opens so many",
    "misconf": "the server refuses writes, since it could not save its data: see its log and disk",
    "db index": "the server has no such database: let the URL end in /0",
    "noperm": "the user lacks a permission: `superfetch doctor` names each that is missing",
    "wrongtype": "another program wrote to a key of celery_superfetch, or to one that is named "
    "like a queue: find it by `redis-cli --scan` and TYPE, and RENAME it",
    "name or service not known": "the host name cannot be resolved: see the URL and the DNS",
    "refused": "nothing listens at that address: start the server, or see the port in the URL",
    "certificate": "the server's TLS certificate is not trusted: see ssl_ca_certs",
    "wrong_version_number": "the server does not speak TLS: use redis:// instead of rediss://",
    "wrong version number": "the server does not speak TLS: use redis:// instead of rediss://",
}


def advice_for(error: BaseException, url: str = "") -> str:
    """Return what to do about an error of the server or of the network; empty if that is unknown,
    or if the error's own text says it.

    Arguments:
        url: the broker's URL. If it asks for TLS, and there is no answer, the server may not speak
            TLS.
    """
    text = str(error).lower()
    for part, advice in ADVICE_BY_TEXT.items():
        if part in text:
            return advice
    if isinstance(error, WrongScheme):
        return ""
    if isinstance(error, AuthenticationError):
        return "the user or the password in the URL is wrong"
    if isinstance(error, ReadOnlyError):
        return "this server is a replica: let the URL name the primary"
    if isinstance(error, BusyLoadingError):
        return "the server loads its data: wait until it is done"
    if isinstance(error, TimeoutError):
        advice = "see whether its process hangs, swaps or is stopped"
        tls = "; or it does not speak TLS: then use redis:// instead of rediss://"
        return advice + (tls if url.startswith(("rediss:", "valkeys:")) else "")
    return ""
