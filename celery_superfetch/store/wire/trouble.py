"""Advice for the person who reads that the Redis server cannot be used."""

from __future__ import annotations

from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, TimeoutError

from .tls import WrongScheme

NO_PASSWORD = "the server wants a password: put it into the URL, redis://:PASSWORD@host"

#: What a server, a service or the resolver says -> what to do about it. The first that is found in
#: the error's text counts, whatever its case.
ADVICE_BY_TEXT = {
    "wrongpass": "the user or the password in the URL is wrong",
    "noauth": NO_PASSWORD,
    "authentication required": NO_PASSWORD,  # so redis-py says it
    "hello must be called": NO_PASSWORD,  # with RESP3
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
    """Return what to do about an error of the server or of the way to it; empty if unknown, or if
    the error says it.

    Arguments:
        url: the broker's URL; with ``rediss://`` a missing answer may be a missing TLS.
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
