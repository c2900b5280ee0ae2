"""Names that nobody has promised to keep, and that jobs depend on: those of kombu and redis-py.

Without one of them, or with another thing under it, a job could be lost, or run twice, in silence.
So whoever consumes looks for all of them first, and refuses a version that lacks one.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module, metadata
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ..errors import UnsupportedVersion
from ..owner.gevent_heart import threads_are_greenlets

_MISSING, _SET = object(), object()
STORE_ATTR = dis.opmap["STORE_ATTR"]


class Name(NamedTuple):
    """One name, and what it is for.

    The path is that of a module in its project and, behind a colon, of what is in it. Of a class
    it is an attribute, or what a method of its sets; one that begins with a point is of an object
    that is there at run time alone. What is called, or stands for ours, has its arguments behind
    it, those with ``=`` by name.
    """

    project: str
    path: str
    #: Completes "needed to".
    why: str
    #: The version that brought it.
    since: tuple[int, int] = (0, 0)
    #: The text that it is; of a function, a text or a name that stands in it.
    text: str = ""

    def __str__(self) -> str:
        begun = self.path.startswith(".")
        return f"{self.path[1:]} in a started pool" if begun else f"{self.project}.{self.path}"

    def is_there(self, what: Any = None) -> bool:
        """Whether the installed version has it, in its shape.

        Arguments:
            what: the object that a path with a point begins at.
        """
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


def _attribute(owner: Any, name: str) -> Any:
    found = getattr(owner, name, _MISSING)
    if found is _MISSING and isinstance(owner, type) and any(_sets(c, name) for c in _codes(owner)):
        return _SET
    return found


def _codes(cls: type) -> Iterator[CodeType]:
    """What the methods of a class do."""
    for one in cls.__mro__:
        # Behind whatever instruments it.
        methods = map(inspect.unwrap, vars(one).values())
        yield from (f.__code__ for f in methods if isinstance(f, FunctionType))


def _sets(code: CodeType, name: str) -> bool:
    steps = zip(code.co_code[::2], code.co_code[1::2], strict=True)
    return name in code.co_names and (STORE_ATTR, code.co_names.index(name)) in steps


def _texts(found: Any) -> Iterable[Any]:
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        return (found,)
    return (*found.__code__.co_consts, *found.__code__.co_names)


def _takes(found: Any, unbound: bool, args: str) -> bool:
    """Whether something can be called with these arguments."""
    names = [name.strip() for name in args.split(",") if name.strip()]
    by_position = [None] * (unbound + sum(not name.endswith("=") for name in names))
    by_name = {name.rstrip("="): None for name in names if name.endswith("=")}
    try:
        inspect.signature(found).bind(*by_position, **by_name)
    except TypeError:  # not to be called, or not in this way
        return False
    except ValueError:  # it is of C, and does not say how; or a method that takes not even itself
        return not inspect.ismethod(found)
    return True


def check(names: Iterable[Name], what: Any = None) -> None:
    """Refuse a version that lacks one of these names.

    Arguments:
        what: the object that paths with a point begin at.

    Raises:
        UnsupportedVersion: the text says which, and what to install.
    """
    for name in names:
        version = str(import_module(name.project).__version__)
        major, minor = version.split(".")[:2]
        if (int(major), int(minor)) >= name.since and not name.is_there(what):
            raise UnsupportedVersion(
                f"{name.project} {version} lacks {name}, or has another thing under that name: it "
                f"is needed to {name.why}. Nothing was claimed. Install a version that "
                f'celery_superfetch was tested with (pip install "{_tested(name.project)}"). If '
                "that is the one installed, another package has changed it at run time."
            )


def _tested(project: str) -> str:
    """Which versions this package asks for; itself where nobody can tell, who asks for them."""
    own = "celery-superfetch"
    try:
        required = metadata.requires(own) or []
    except metadata.PackageNotFoundError:
        required = []
    return next((one.split(";")[0] for one in required if one.startswith(project)), own)


@cache
def check_transport() -> None:
    """Refuse a kombu or redis-py whose jobs could not be fetched reliably; raises as ``check``."""
    check(NAMES)
    if threads_are_greenlets():
        check(GEVENTS)


_CHANNEL = "transport.redis:Channel."
_POLLER = "transport.redis:MultiChannelPoller."
_QOS = "transport.virtual:QoS."
_SENTINEL = "transport.redis:SentinelChannel."
_TRANSPORT = "transport.virtual:Transport."
_CONNECTION = "connection:Connection."

#: What any consumer needs.
NAMES = (
    Name("kombu", _CHANNEL + "_active_queues", "know from which queues to claim"),
    Name("kombu", _CHANNEL + "_basic_cancel(consumer_tag)", "stop claiming from a queue"),
    Name("kombu", _CHANNEL + "_connparams(asynchronous)", "leave a server that became a replica"),
    Name("kombu", _CHANNEL + "_expires", "keep x-expires", (5, 7)),
    Name("kombu", _CHANNEL + "_fanout_queues", "leave broadcasts to kombu"),
    Name("kombu", _CHANNEL + "_get(queue)", "serve queues without ack as kombu does"),
    Name("kombu", _CHANNEL + "_get_message_priority(message, reverse=)", "find a job's queue list"),
    Name("kombu", _CHANNEL + "_has_queue(queue)", "count jobs that are claimed ahead"),
    Name("kombu", _CHANNEL + "_lookup(exchange, routing_key)", "find a job's queues"),
    Name("kombu", _CHANNEL + "_maybe_update_queues_expire(c, queue)", "keep x-expires", (5, 7)),
    Name("kombu", _CHANNEL + "_purge(queue)", "purge suspects with their queue"),
    Name("kombu", _CHANNEL + "_q_for_pri(queue, pri)", "know the lists of a queue"),
    Name("kombu", _CHANNEL + "_restore(message, leftmost)", "give a job back by its claim"),
    Name("kombu", _CHANNEL + "_size(queue)", "count jobs that are claimed ahead"),
    Name("kombu", _CHANNEL + "_tag_to_queue", "stop claiming from a queue"),
    Name("kombu", _CHANNEL + "_update_queue_cycle()", "know from which queues to claim"),
    Name("kombu", _CHANNEL + "active_queues", "keep kombu from taking jobs that want an ack"),
    Name("kombu", _POLLER + "_channels", "fetch for each channel of a connection"),
    Name("kombu", _POLLER + "_fd_to_chan", "leave sockets alone that are closed"),
    Name("kombu", _POLLER + "_in_protected_read", "fetch once in a turn of the loop"),
    Name("kombu", _POLLER + "get(callback, timeout)", "fetch where there is no event loop"),
    Name("kombu", _POLLER + "handle_event(fileno, event)", "hear sockets without an event loop"),
    Name("kombu", _POLLER + "on_poll_start()", "fetch in each turn of the loop"),
    Name("kombu", _POLLER + "on_readable(fileno)", "hear blocking reads"),
    Name("kombu", _QOS + "_delivered", "know what was delivered"),
    Name("kombu", _QOS + "_dirty", "know what was settled"),
    Name("kombu", _QOS + "_flush()", "know what was settled"),
    Name("kombu", _QOS + "_on_collect", "give jobs back once at the end"),
    Name("kombu", _QOS + "_quick_ack", "settle a delivery"),
    Name("kombu", _QOS + "restore_unacked()", "give jobs back when a channel closes"),
    Name("kombu", _QOS + "restore_unacked_once(stderr)", "give jobs back when a channel closes"),
    Name("kombu", _TRANSPORT + "_avail_channels", "refuse a replica as it connects"),
    Name("kombu", _TRANSPORT + "_callbacks", "deliver a job to its consumer"),
    Name("kombu", _TRANSPORT + "_deliver(message, queue)", "deliver a job to its consumer"),
    Name("kombu", _TRANSPORT + "_reject_inbound_message(raw_message)", "give back what none wants"),
    Name("kombu", "transport.redis:QoS.restore_visible()", "keep kombu from restoring jobs itself"),
    Name("kombu", _SENTINEL + "_sentinel_managed_pool(asynchronous)", "ask Sentinels"),
    Name("kombu", "transport.virtual:Message._raw", "know the claim behind a message"),
    Name("redis", _CONNECTION + "_sock", "wait for a socket, and know that it is another"),
    Name("redis", _CONNECTION + "can_read(timeout)", "call off a blocking read"),
    Name("redis", _CONNECTION + "read_response()", "leave a server that became a replica"),
    Name("redis", _CONNECTION + "send_packed_command(command, check_health=)", "send acks ahead"),
    Name("redis", "client:Redis.connection", "have a heart that no full pool can stop"),
    Name("redis", "sentinel:SentinelConnectionPool.sentinel_manager", "know where Sentinels are"),
)

#: Under gevent's monkey patching.
GEVENTS = (
    Name("gevent", "monkey:get_original(mod_name, item_name)", "be heard while its hub is blocked"),
    Name("gevent", "socket:socket._sock", "be heard while its hub is blocked"),
    Name("gevent", "ssl:SSLSocket._sslobj", "be heard while its hub is blocked"),
)
