"""Connections that follow the primary of a database through failovers, and their parameters.

``following`` derives a class from one of redis-py's. At each connect it finds the primary: by
Sentinels, or as the node of a cluster that serves the app's slot. If its server is no longer the
primary, the connection is closed and a connection error is raised, so that the caller connects
again.

kombu's channel of this package (``transport/channel.py``) makes the parameters of nearly all
connections: in workers, publishers, beat and most commands. ``following_params`` gives them the
class that follows the primary, ``with_client_defaults`` the package's timeouts and name. The result
backend for clusters and ``urls.py`` make the others. ``app/result_backends.py`` calls
``close_if_refused`` for the pools of result backends. redis-py calls the methods of both classes,
in any thread or greenlet.

Nothing is written. If the process dies, its sockets close. A command that was sent may have been
executed or not; either is safe, since a script of this package moves a job as a whole or not at
all, and finds out if it is repeated.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

redis connection:Connection.
    know whether it is connected: _sock
    leave a server that became a replica: read_response() redis_connect_func
    send several commands before their replies are read: send_packed_command(command,check_health=)
redis
    find that a server speaks no TLS: connection:SSLConnection._connect()
    know where Sentinels are: sentinel:SentinelConnectionPool.sentinel_manager
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic, sleep
from typing import Any, NamedTuple

from redis import Connection, cluster
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from ...errors import UnsupportedBroker
from ...model.version import __version__
from .server import is_read_only, is_temporary
from .slots import NO_TAG, SEARCH_PAUSE_S, Slot, orphaned, patience_of, reply_to
from .tls import WrongScheme, note_answer, open_socket, raise_if_server_speaks_tls

Params = Mapping[str, Any]  # arguments of ``redis.ConnectionPool`` that lead to one database
#: Options for connections to a Sentinel: short timeouts and no second try, since there are other
#: Sentinels. By default redis-py would try again and again to reach a Sentinel that is gone.
ASKED_ONCE: Params = {
    "socket_timeout": 2.0,
    "socket_connect_timeout": 2.0,
    "retry": Retry(NoBackoff(), 0),
}

#: Seconds to wait for a reply if the user set no ``socket_timeout``. If a firewall silently dropped
#: the connection, the kernel alone would wait for a quarter of an hour. It is more than the 10 s
#: for which a busy server may answer nothing.
REPLY_TIMEOUT_S = 15.0
#: Id of the task whose message this thread or greenlet is sending; None: it sends none. A command
#: that sends a task has no timeout: after a timeout kombu would send the message again, and the
#: task would run twice. Commands that may run twice are sent in ``repeatable``.
publishing: ContextVar[str | None] = ContextVar("publishing", default=None)
REDIRECT_TRIES = 3  # times that redis-py repeats a command which a node of a cluster did not serve
#: Errors of Redis and Valkey to a SELECT of a database that does not exist.
NO_SUCH_DATABASE = ("SELECT is not allowed in cluster mode", "DB index is out of range")
#: redis-py before 6 tells MOVED, ASK and similar errors apart only with this parser.
CLUSTER_PARSER = getattr(cluster, "ClusterParser", None)
#: The package's name in CLIENT LIST: it tells its connections from those of stock kombu.
LIBRARY_NAME = "celery-superfetch"


@contextmanager
def repeatable() -> Iterator[None]:
    """Keep the timeout of the commands of this block while a task is being sent: they may run
    twice. Without a timeout they would wait for ever for the reply of a host that is gone."""
    token = publishing.set(None)
    try:
        yield
    finally:
        publishing.reset(token)


class Demoted(RedisConnectionError):
    """The server that was reached is a read-only replica of ``primary``. ``is_linked``: whether it
    is connected to that primary."""

    def __init__(self, host: str, port: str, *, is_linked: bool) -> None:
        self.primary = host, int(port)
        lost = "" if is_linked else " (a replica that has lost its primary)"
        super().__init__(
            f"the broker is a read-only replica of {host}:{port}{lost}: it accepts no claims and "
            "no new jobs. Nothing was lost; the connection is retried until the failover is "
            "over. If there is no failover, point broker_url at the primary"
        )


class NotServed(RedisConnectionError):
    """The server did not execute the command, since it is a node of a cluster that does not serve
    the app's slot, or a primary that has become a replica. Another server can execute it. The
    command can be repeated: the next connect finds the right server."""


def greet(connection: Any) -> None:
    """Check a new connection; redis-py calls this at each connect. ``Slot.greet`` checks the node
    of a cluster, ``PrimaryGuard.greet`` that the server is the one that gets the owner's
    heartbeats. Raise Demoted if the server is a read-only replica: a kombu consumer then connects
    again, with a pause, until the failover is over. Raise ResponseError if the server refuses to
    say it only now (BUSY)."""
    connection.run_id = ""
    connection.on_connect()
    if connection.slot is not None:
        connection.slot.greet(connection)
    try:
        reply = reply_to(connection, "INFO", "replication")
    except ResponseError as exc:
        note_answer(connection)
        if is_temporary(exc):  # (BUSY) its role and its run would be unknown
            raise
        return  # the ACL forbids INFO: the server is taken as it is
    note_answer(connection)
    reply = reply.decode() if isinstance(reply, bytes) else reply
    fields = dict(re.findall(r"^(\w+):(\S*)", reply, re.MULTILINE))
    if fields.get("role") == "slave" and fields.get("slave_read_only") != "0":
        is_linked = fields.get("master_link_status") != "down"
        raise Demoted(fields["master_host"], fields["master_port"], is_linked=is_linked)
    if connection.primary_guard is not None:
        connection.primary_guard.greet(connection)


#: Errors of redis-py if another thread or greenlet closes a connection while this one uses it.
CLOSED_MEANWHILE = (AttributeError, ValueError)


def closed_meanwhile(exc: Exception) -> RedisConnectionError:
    """Return the error to raise instead of one of ``CLOSED_MEANWHILE``. kombu and Celery repeat a
    command after a connection error. After one of the others they do not: a job whose retry was
    being sent would stay in flight until its worker ended."""
    return RedisConnectionError(f"The connection was closed meanwhile ({exc}).")


def following(connection_class: Any) -> Any:
    """Return a subclass of a redis-py connection class that finds the primary at each connect, and
    closes itself if its server is no longer the primary: READONLY, MASTERDOWN, MOVED and similar
    replies become connection errors. The server has executed nothing when it sends one of these.

    Arguments of the subclass, beside those of its base:
        slot: the app's slot of a cluster; the connection goes to the node that serves it.
        primary_guard: knows the server of this owner's heartbeats; the connection refuses others.
    """

    class Following(connection_class):
        #: ``pools.py`` compares this, since each call of ``following`` makes another subclass.
        follows = connection_class
        run_id = ""  # the run of the server that was reached; known if there is a ``primary_guard``

        def __init__(
            self, *args: Any, slot: Slot | None = None, primary_guard: Any = None, **kwargs: Any
        ) -> None:
            if CLUSTER_PARSER is not None:
                kwargs["parser_class"] = CLUSTER_PARSER
            super().__init__(*args, redis_connect_func=greet, **kwargs)
            self.slot, self.primary_guard = slot, primary_guard

        @property
        def replaceable(self) -> bool:
            """True if a primary that fails is replaced: Sentinels name the next one (their
            connections alone have a ``connection_pool``), or a cluster does."""
            return hasattr(self, "connection_pool") or bool(self.slot and self.slot.clustered)

        def _connect(self) -> Any:
            return open_socket(self, super()._connect)

        def connect(self) -> None:
            """Connect. If the primary is replaced after a failure (``replaceable``), try for some
            seconds (``patience_of``). No command was sent yet."""
            deadline = monotonic() + patience_of(self)
            while self._sock is None:
                try:
                    if self.slot is None:
                        return super().connect()
                    return self.slot.reach(self, super().connect)
                except (AuthenticationError, AuthorizationError, WrongScheme):
                    raise
                except InvalidResponse as exc:
                    raise_if_server_speaks_tls(self, exc)
                    raise
                except (RedisConnectionError, RedisTimeout) as exc:
                    if not isinstance(exc, RedisTimeout):
                        raise_if_server_speaks_tls(self, exc)
                    if not self.replaceable or monotonic() >= deadline:
                        raise
                    # After a manual FAILOVER the Sentinels name the old primary for a while. The
                    # old primary, a replica now, names the new one.
                    if isinstance(exc, Demoted):
                        with suppress(RedisConnectionError, RedisTimeout):
                            return self.connect_to(exc.primary)
                sleep(SEARCH_PAUSE_S)

        def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            # redis-py would connect to the last address again, and ask no Sentinel.
            if self._sock is None:
                self.connect()
            try:
                super().send_packed_command(command, check_health=check_health)
            except CLOSED_MEANWHILE as exc:
                raise closed_meanwhile(exc) from exc
            # A task's message is sent without a timeout (see ``publishing``), unless the user set
            # one: the timeout is the package's own if it is this very object, and not only equal.
            # ``check_health`` is False for commands that send no message, such as those of
            # ``greet``.
            is_default_timeout = self.socket_timeout is REPLY_TIMEOUT_S
            if check_health and is_default_timeout and not self.replaceable and publishing.get():
                self._sock.settimeout(None)

        def reply(self) -> Any:
            """Read a reply as redis-py does, without the checks of ``read_response``; for the
            commands of ``greet``."""
            return super().read_response()

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            # For a message of pub/sub redis-py passes ``timeout=None``: no limit. If half a message
            # had come, kombu's loop would wait for ever.
            if kwargs.get("timeout", ...) is None:
                del kwargs["timeout"]
            try:
                reply = super().read_response(*args, **kwargs)
            except CLOSED_MEANWHILE as exc:
                raise closed_meanwhile(exc) from exc
            except MasterDownError as exc:  # before ClusterDownError, of which it is a subclass
                self.disconnect()
                raise orphaned(exc) from exc
            # AskError includes MovedError, its subclass.
            except (AskError, TryAgainError, ClusterDownError) as exc:
                self.disconnect()
                if self.slot is None:
                    raise UnsupportedBroker(f"{NO_TAG} ({exc})") from exc
                raise NotServed(
                    "this node of the cluster does not serve the app's slot now "
                    f"({type(exc).__name__}: {exc}): the command was not carried out"
                ) from exc
            except ResponseError as exc:
                if str(exc).startswith(NO_SUCH_DATABASE):
                    raise UnsupportedBroker(
                        f"the server has no database {self.db} ({exc}): broker_url must end in "
                        "/0. Clusters and some services have only database 0; apps share it with "
                        "a prefix for each (global_keyprefix)"
                    ) from exc
                # UNBLOCKED: a blocking read was ended because the server has become a replica.
                unblocked = str(exc).startswith("UNBLOCKED force unblock")
                if not (unblocked or is_read_only(exc)):
                    raise
                self.disconnect()
                error = NotServed if self.replaceable else RedisConnectionError
                raise error(
                    "the server became a read-only replica in a failover: the command was not "
                    f"carried out ({exc}); looking for the primary"
                ) from exc
            finally:
                # ``send_packed_command`` has taken the timeout away for a task's message.
                if self._sock is not None and self._sock.gettimeout() is None:
                    self._sock.settimeout(self.socket_timeout)
            # The heartbeats may have moved to another server since this connection was opened.
            if self.primary_guard is not None:
                self.primary_guard.refuse_stranger(self)
            return reply

    return Following


def close_if_refused(pool: Any) -> Any:
    """Make a pool of redis-py close a connection that it gets back, if the server has refused a
    command on it for a while, and return the pool. The next command connects again, and resolves
    the address again. If a virtual IP, a DNS name or a proxy leads to another primary by then, the
    old one, a replica, would refuse each write on the old connection for ever, since it closes no
    connection."""
    release = pool.release

    class RefusalAware(pool.connection_class):
        """A connection that stores whether the server has refused a command for a while."""

        was_refused = False

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().read_response(*args, **kwargs)
            except ResponseError as exc:
                # A refused command of a transaction is followed by an EXECABORT without a reason.
                # The connection cannot be closed here: the other replies are still to be read.
                self.was_refused = self.was_refused or is_temporary(exc)
                raise

    def release_or_close(connection: Any) -> None:
        if connection.was_refused:
            connection.was_refused = False
            connection.disconnect()
        release(connection)

    pool.connection_class, pool.release = RefusalAware, release_or_close
    return pool


def following_params(params: Params, slot: Slot | None) -> dict[str, Any]:
    """Return ``params`` for connections that follow the primary of the database, or the node of a
    cluster that serves ``slot``. They have no ``primary_guard``: ``Owner`` adds that."""
    kwargs = {**params, "connection_class": following(params.get("connection_class", Connection))}
    if slot is not None:
        # redis-py repeats a command that a node did not serve, since it was not executed. It
        # repeats none after other errors: the command may have been executed. ``without_retries``
        # removes this for the connections that claim.
        kwargs.update(
            slot=slot, retry=Retry(NoBackoff(), REDIRECT_TRIES, supported_errors=(NotServed,))
        )
    return kwargs


def without_passwords(
    discover_master: Callable[[str], Any], options: Params
) -> Callable[[str], Any]:
    """Wrap a redis-py Sentinel's ``discover_master``, whose errors show the whole client of each
    Sentinel, in older versions with its passwords. The errors of the wrapper show only the
    addresses."""

    def discover(service_name: str) -> Any:
        try:
            return discover_master(service_name)
        except MasterNotFoundError as exc:
            text = re.sub(r"<redis.*?host=([^,)]*),port=(\d+).*?>\)>\)>", r"\1:\2", str(exc))
        for name in ("password", "ssl_password"):
            text = text.replace(f"{name}={options.get(name)}", f"{name}=***")
        raise MasterNotFoundError(text)

    return discover


class Sentinels(NamedTuple):
    """The ``connection_pool`` of connections that follow Sentinels: redis-py's connection asks it
    for the primary at each connect. Each time it opens connections to the Sentinels and closes them
    again, since redis-py's ``Sentinel`` is not thread-safe."""

    service_name: str
    addresses: Sequence[tuple[str, int]]
    min_other_sentinels: int = 0
    options: Params = ASKED_ONCE
    # Attributes that redis-py's connections read.
    is_master: bool = True
    check_connection: bool = False

    def get_master_address(self) -> tuple[str, int]:
        """Return host and port of the primary; raise ConnectionError if no Sentinel that answers
        knows one."""
        sentinel = Sentinel(
            list(self.addresses),
            min_other_sentinels=self.min_other_sentinels,
            sentinel_kwargs=self.options,
        )
        try:
            return without_passwords(sentinel.discover_master, self.options)(self.service_name)
        finally:
            for client in sentinel.sentinels:
                client.close()


def sentinel_params(pool: SentinelConnectionPool) -> dict[str, Any]:
    """Return the parameters for connections outside of kombu's ``pool`` to the primary that its
    Sentinels name."""
    manager = pool.sentinel_manager
    # Since redis-py 8 a pool adds handlers that only its own connections may call.
    pools = "maint_", "orig_"
    pool_params = {k: v for k, v in pool.connection_kwargs.items() if not k.startswith(pools)}
    places = (client.connection_pool.connection_kwargs for client in manager.sentinels)
    return {
        **pool_params,
        "connection_class": pool.connection_class,
        "max_connections": pool.max_connections,
        "connection_pool": Sentinels(
            pool.service_name,
            tuple((at["host"], int(at["port"])) for at in places),
            manager.min_other_sentinels,
            dict(manager.sentinel_kwargs),
        ),
    }


def place_of(params: Params) -> tuple[Hashable, ...]:
    """Return the identity of the database and the user of ``params``. It is equal for two
    parameters that lead to the same database, even if they name other nodes of one cluster, or its
    Sentinels in another order."""
    sentinels, slot = params.get("connection_pool"), params.get("slot")
    if slot is not None and slot.clustered:
        return slot.key, slot.seeds, str(params.get("username"))
    parts = tuple(str(params.get(part)) for part in ("host", "port", "path", "db", "username"))
    if not isinstance(sentinels, Sentinels):
        return parts
    return *parts, sentinels.service_name, frozenset(sentinels.addresses)


def name_of(params: Params) -> str:
    """Return ``place_of`` as a text that is the same in each process."""
    parts = (sorted(part) if isinstance(part, frozenset) else part for part in place_of(params))
    return " ".join(map(str, parts))


def without_retries(params: Params) -> dict[str, Any]:
    """Return ``params`` with which redis-py repeats no command by itself. If it repeated a claim
    whose reply was lost, the worker would never learn which jobs the first claim has moved."""
    other_params = {k: v for k, v in params.items() if k not in ("retry", "retry_on_error")}
    return {**other_params, "retry_on_timeout": False}


def with_client_defaults(params: Params) -> dict[str, Any]:
    """Return ``params`` with a timeout, if the user set none, and with the package's name, which
    redis-py sends to servers that know CLIENT SETINFO (``is_own_connection`` finds it)."""
    names = ["socket_timeout"] if "path" in params else ["socket_timeout", "socket_connect_timeout"]
    completed = {**params, **{name: params.get(name) or REPLY_TIMEOUT_S for name in names}}
    try:
        from redis import DriverInfo
    except ImportError:  # redis-py before 7.1
        return {**completed, "lib_name": f"redis-py({LIBRARY_NAME}_v{__version__})"}
    return {**completed, "driver_info": DriverInfo().add_upstream_driver(LIBRARY_NAME, __version__)}


def is_own_connection(client: Mapping[str, Any]) -> bool:
    """Return whether a row of CLIENT LIST names this package, by its library or its own name."""
    return (
        f"({LIBRARY_NAME}_v" in str(client.get("lib-name", ""))
        or client.get("name") == LIBRARY_NAME
    )
