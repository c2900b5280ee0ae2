"""Words for errors of the Redis server, for the person who reads them: ``trouble_of`` says what
happened, ``advice_for`` what to do.

The command line, the console's health check (``console/probe.py``) and its metrics call them, each
in a process of its own, to print a broker's error. A worker's maintenance thread and a channel's
``Upkeep`` call ``advice_on_refusal`` to log one. They only map texts: nothing is sent to Redis, and
if the process dies, nothing has to be repaired.
"""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ResponseError,
    TimeoutError,
)

from ...errors import SuperfetchError
from ...model.humanize import command, sentence
from .server import FULL_TEXT, is_read_only
from .tls import WrongScheme

NO_PASSWORD = "the server requires a password: put it into the URL, redis://:PASSWORD@host"
LACKS_PERMISSION = "the user lacks a permission: `{command} doctor` names each that is missing"

#: Part of an error of the server, of a managed service or of the resolver, in lower case -> the
#: advice, in which ``{command}`` stands for ``humanize.command``. The first part that is in the
#: error's text counts. Where redis-py has a class for an error, it removes the code from the text:
#: "OOM" and "NOPERM" would never be found.
ADVICE_BY_TEXT = {
    "wrongpass": "the user or the password in the URL is wrong",
    "noauth": NO_PASSWORD,
    "authentication required": NO_PASSWORD,  # redis-py's text for NOAUTH
    "hello must be called": NO_PASSWORD,  # the server's text with RESP3
    "invalid password": "the password in the URL is wrong",
    FULL_TEXT: "the server is full and refuses writes: raise maxmemory, or find the queue or "
    "result that grows",
    "max number of clients": "the server has no connection left: raise maxclients, or find the "
    "program that opens so many",
    "max concurrent connections": "the plan has no connection left: find the program that opens "
    "so many",
    "misconf": (
        "the server refuses writes, since it could not save its data: check its log and its disk"
    ),
    "is busy running": "a script (or function) of some program has run for longer than "
    "busy-reply-threshold, and the server serves no other command: end it with `redis-cli SCRIPT "
    "KILL` or `FUNCTION KILL`, and find that program (SLOWLOG GET)",
    "db index": "the server has no such database: let the URL end in /0",
    "no permissions": LACKS_PERMISSION,
    "the user executing the script can't": LACKS_PERMISSION,  # in a script, before Redis 7
    "wrongtype": "another program wrote to a key of celery_superfetch, or to one with the name "
    "of a queue: `{command} status` names the key; find that program, and RENAME the key",
    "name or service not known": "the host name cannot be resolved: check the URL and the DNS",
    "refused": "nothing listens at that address: start the server, or check the port in the URL",
    "certificate": "the server's TLS certificate is not trusted: check ssl_ca_certs",
    "wrong_version_number": "the server does not speak TLS: use redis:// instead of rediss://",
    "wrong version number": "the server does not speak TLS: use redis:// instead of rediss://",
}


def trouble_of(error: BaseException, broker: str = "the broker") -> str:
    """Return what has happened, as the beginning of a message: a server that refuses a command was
    reached.

    Arguments:
        error: of the server, of the network or of the app's settings.
        broker: its name in the message.
    """
    if isinstance(error, SuperfetchError):
        return f"{broker} cannot be checked"
    # kombu raises an error of its own from that of the server.
    if isinstance(error, ResponseError) or isinstance(error.__cause__, ResponseError):
        return f"{broker} refused a command"
    return f"{broker} cannot be reached"


def advice_for(error: BaseException, url: str = "") -> str:
    """Return the advice on an error of the server or of the network; empty if there is none, or if
    the error's own text has it.

    Arguments:
        url: the broker's URL. If it asks for TLS, and there is no answer, the server may not speak
            TLS.
    """
    text = str(error).lower()
    for part, advice in ADVICE_BY_TEXT.items():
        if part in text:
            return advice.format(command=command())
    if isinstance(error, WrongScheme):
        return ""
    if isinstance(error, AuthenticationError):
        return "the user or the password in the URL is wrong"
    if is_read_only(error):
        return "this server is a replica: the URL must name the primary"
    if isinstance(error, BusyLoadingError):
        return "the server is loading its data: wait until it has finished"
    if isinstance(error, TimeoutError):
        advice = "check whether its process hangs, swaps or is stopped"
        tls = "; or it does not speak TLS: then use redis:// instead of rediss://"
        return advice + (tls if url.startswith(("rediss:", "valkeys:")) else "")
    return ""


def advice_on_refusal(refusal: ResponseError) -> str:
    """Return the advice on an error that the server answered, as a sentence without its end. If
    there is none for this error, the sentence names what to check."""
    advice = advice_for(refusal) or "check the memory, disk, replicas and permissions of Redis"
    return sentence(advice)
