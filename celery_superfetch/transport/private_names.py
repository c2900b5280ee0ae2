"""Names that nobody has promised to keep, and without which a job could be lost in silence: whoever
consumes looks for all of them first, and refuses a version that lacks one."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from types import FunctionType
from typing import Any, NamedTuple

from ..errors import UnsupportedVersion
from ..owner.heartbeats import threads_are_greenlets

_MISSING = object()

_ENTRY = re.compile(r"([^\s>~]+)(?:>=([\d.]+))?(?:~(\S+))?")


class Name(NamedTuple):
    """The path is that of a module and, behind a colon, of what is in it, or what a method of a
    class sets; with a point before it, of an object of run time. What is called has its arguments
    behind it, those with ``=`` by name."""

    project: str
    path: str
    why: str  # completes "needed to"
    since: tuple[int, ...] = ()
    text: str = ""  # that it is; of a function, one that stands in it

    def __str__(self) -> str:
        begun = self.path.startswith(".")
        return f"{self.path[1:]} in a started pool" if begun else f"{self.project}.{self.path}"

    def is_there(self, what: Any) -> bool:
        path, called, args = self.path.rstrip(")").partition("(")
        module, _, attributes = path.rpartition(":")
        try:
            found = what if path.startswith(".") else import_module(f"{self.project}.{module}")
        except ModuleNotFoundError as exc:
            if str(exc.name).startswith(self.project):
                return False
            raise  # what is missing is another's
        for attribute in filter(None, attributes.split(".")):
            owner, found = found, _attribute(found, attribute)
        if found is _MISSING or (self.text and self.text not in _texts(found)):
            return False
        return not called or _takes(found, isinstance(owner, type), args)


def names(table: str) -> tuple[Name, ...]:
    """Read a table: a project and how paths begin there, and below it each purpose. Behind a path
    may stand the version that brought it (``>=5.7``) and its text (``~text``)."""
    found, why = [], ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            project, _, begin = line.partition(" ")
            continue
        begun, _, entries = line.strip().rpartition(": ")
        why = begun or why
        for path, version, text in _ENTRY.findall(entries):
            since = tuple(map(int, re.findall(r"\d+", version)))
            found.append(Name(project, begin + path, why, since, text))
    return tuple(found)


def _attribute(owner: Any, name: str) -> Any:
    """What is there under a name; None for what a method of a class sets, instrumented or not."""
    found = getattr(owner, name, _MISSING)
    if found is not _MISSING or not isinstance(owner, type):
        return found
    own = (inspect.unwrap(f) for one in owner.__mro__ for f in vars(one).values())
    codes = (f.__code__ for f in own if isinstance(f, FunctionType) and name in f.__code__.co_names)
    steps = (step for code in codes for step in dis.get_instructions(code))
    is_set = any(step.opname == "STORE_ATTR" and step.argval == name for step in steps)
    return None if is_set else _MISSING


def _texts(found: Any) -> Iterable[Any]:
    code = getattr(inspect.unwrap(found), "__code__", None)
    return (found,) if code is None else (*code.co_consts, *code.co_names)


def _takes(found: Any, unbound: bool, args: str) -> bool:
    given = re.findall(r"\w+=?", args)
    by_name = {name[:-1]: None for name in given if name.endswith("=")}
    by_position = [None] * (unbound + len(given) - len(by_name))
    try:
        inspect.signature(found).bind(*by_position, **by_name)
    except TypeError:  # not to be called, or not in this way
        return False
    except ValueError:  # it is of C, and does not say how; or a method that takes not even itself
        return not inspect.ismethod(found)
    return True


def check(names: Iterable[Name], what: Any = None) -> None:
    """Raise UnsupportedVersion where one lacks a name; a path with a point begins at ``what``."""
    for name in names:
        version = str(import_module(name.project).__version__)
        if tuple(map(int, version.split(".")[:2])) >= name.since and not name.is_there(what):
            raise UnsupportedVersion(
                f"{name.project} {version} lacks {name}, or has another thing under that name: it "
                f"is needed to {name.why}. Nothing was claimed. Install a version that "
                f'celery_superfetch was tested with (pip install "{_tested(name.project)}"). If '
                "that is the one installed, another package has changed it at run time."
            )


def _tested(project: str) -> str:
    """Which versions this package asks for; itself where nobody can tell."""
    own, required = "celery-superfetch", None
    with suppress(metadata.PackageNotFoundError):
        required = metadata.requires(own)
    return next((one.split(";")[0] for one in required or () if one.startswith(project)), own)


@cache
def check_transport() -> None:
    """Refuse a kombu or redis-py whose jobs could not be fetched reliably."""
    check(NAMES)
    if threads_are_greenlets():
        check(GEVENTS)


#: What any consumer needs.
NAMES = names("""
kombu transport.redis:Channel.
    know from which queues to claim: _active_queues _update_queue_cycle() _tag_to_queue
        _basic_cancel(consumer_tag)
    know the lists of a queue: _q_for_pri(queue,pri) _lookup(exchange,routing_key)
        _get_message_priority(message,reverse=)
    leave to kombu what wants no ack, and no more: active_queues _fanout_queues _get(queue)
        _brpop_read()
    count what is claimed ahead, and purge suspects: _has_queue(queue) _size(queue) _purge(queue)
    keep x-expires: _new_queue(queue) _expires>=5.7 _maybe_update_queues_expire(c,queue)>=5.7
    leave a server that became a replica: _connparams(asynchronous)
kombu transport.redis:MultiChannelPoller.
    fetch once in each turn of the loop: _channels _in_protected_read on_poll_start()
        get(callback,timeout)
    hear blocking reads: on_readable(fileno) handle_event(fileno,event) _fd_to_chan
kombu transport.virtual:QoS.
    settle a delivery: _delivered
    give jobs back when a channel closes: restore_unacked() restore_unacked_once(stderr) _on_collect
kombu transport.virtual:
    refuse a replica as it connects: Transport._avail_channels
    know the claim behind a message: Message._raw
kombu transport.redis:
    ask Sentinels: SentinelChannel._sentinel_managed_pool(asynchronous)
redis connection:Connection.
    wait for a socket, and know that it is another: _sock can_read(timeout)
    leave a server that became a replica: read_response()
    send acks ahead: send_packed_command(command,check_health=)
redis
    have a heart that no full pool can stop: client:Redis.connection
    know where Sentinels are: sentinel:SentinelConnectionPool.sentinel_manager
""")

#: Under gevent's monkey patching.
GEVENTS = names("""
gevent
    be heard while its hub is blocked: monkey:get_original(mod_name,item_name) socket:socket._sock
        ssl:SSLSocket._sslobj
""")
