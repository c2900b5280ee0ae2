"""kombu's Redis channel without connections that it does not use.

kombu's own channel has two connection pools, opens a connection in each to ping the server, and
keeps both until it is closed. Managed services sell plans by the number of connections.
``FrugalChannel`` uses one pool for all channels of its process, for all commands but BRPOP. It has
a connection for BRPOP only while it consumes a queue without acks.

``Channel`` (``channel.py``) inherits from it. kombu calls its methods, in the thread that uses the
channel: a producer's, or that of a worker's event loop. The package itself calls ``server_params``
and ``is_broadcast``.

If the process dies, its connections close. The bindings of its broadcast queues, which ``close``
deletes, stay on the server and do no harm. A message that the server sends by BRPOP at that moment
is lost, as with stock kombu: the queue has no acks.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

kombu transport.redis:Channel.
    keep no connection that is not used: _create_client(asynchronous=) _in_poll
        _basic_cancel(consumer_tag) _brpop_read()
        _connparams(asynchronous)
"""

from __future__ import annotations

from typing import Any

from kombu.log import get_logger
from kombu.transport import redis
from redis.exceptions import RedisError

from ..model.lazy import lazy_property
from ..model.log_text import one_line_each
from ..store.redis.connections import Params
from ..store.redis.pools import SharedPool, shared_pool

logger = one_line_each(get_logger(__name__))


class FrugalChannel(redis.Channel):
    """A channel that shares a connection pool with the other channels of its process, and has a
    connection for BRPOP only while it consumes a queue without acks."""

    _made_pool: Any = None  # kombu's pool, in whose place the shared one is; without connections
    _shared_pool: SharedPool | None = None
    _is_made = False  # kombu's constructor has returned

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
        except Exception:  # the server cannot be reached
            self._leave_pool()
            raise
        self._is_made = True
        # In the constructor kombu has pinged the server with the value of ``client`` below, a
        # client on the shared pool. It is dropped here, so that the next access makes another
        # client, with a connection of its own for BRPOP.
        self.__dict__.pop("client", None)

    @property
    def pool(self) -> Any:
        """The pool of this process at one server. All its channels share it with the owner, the
        object that claims and acks the jobs of the process. For BRPOP and broadcasts kombu has
        another pool (``async_pool``), whose connections report to this channel that they are lost.
        """
        # kombu reads options of the channel as it makes its pool. It opens no connection then, and
        # makes another pool after a fork.
        made: Any = super().pool
        if not self._is_shareable(made):
            return made
        if self._shared_pool is None or self._made_pool is not made:
            self._made_pool, self._shared_pool = made, shared_pool(self._params_of(made))
            self._shared_pool.enter(self)
        return self._shared_pool

    def _leave_pool(self) -> None:
        """Leave the shared pool, which other channels may use."""
        pool, self._shared_pool = self._shared_pool, None
        if pool is not None:
            pool.leave(self)

    def server_params(self) -> Params:
        """Return the parameters of connections to this channel's database."""
        params: Params = self._connparams()
        return params

    def _is_shareable(self, made: Any) -> bool:
        """Return whether a shared pool may replace the pool that kombu has made.
        ``SentinelChannel`` overrides it."""
        return True

    def _params_of(self, made: Any) -> Params:
        """Return the parameters of the connections of a pool that kombu has made;
        ``SentinelChannel`` overrides it."""
        return self.server_params()

    @lazy_property
    def client(self) -> Any:
        """kombu's client for BRPOP, with a connection of its own. While kombu's constructor runs,
        the client uses the shared pool instead: kombu pings the server with it there, and each
        producer would open a connection that it never uses again."""
        return self._create_client(asynchronous=self._is_made)

    def _close_idle_client(self) -> None:
        """Close the connection for BRPOP if no queue is consumed with it. If it stayed open and the
        server (``timeout``) or a firewall closed it, kombu would take the broker for lost."""
        client = self.__dict__.get("client")
        if client is None or self._in_poll or self.active_queues or self.connection is None:
            return  # ``_in_poll``: a BRPOP is under way, and its reply may have a message
        connection, pool = client.connection, client.connection_pool
        if connection is None:
            return  # the application uses ``channel.client`` itself, without BRPOP
        self.connection.cycle.forget(self, client)
        del self.__dict__["client"]
        client.connection = None
        connection.disconnect()
        pool.release(connection)

    def is_broadcast(self, exchange: str) -> bool:
        """Return whether the messages of an exchange are broadcasts, which go to every queue that
        is bound to it."""
        return bool(self.typeof(exchange).type == "fanout")

    def _basic_cancel(self, consumer_tag: str) -> Any:
        result = super()._basic_cancel(consumer_tag)
        self._close_idle_client()
        return result

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        finally:
            self._close_idle_client()

    def close(self) -> None:
        if not self.closed and any(map(self.is_broadcast, self.state.exchanges)):
            # kombu deletes the bindings of this channel's broadcast queues (auto-delete) only if it
            # has a client for BRPOP.
            self.__dict__.setdefault("client", self._create_client())
        try:
            super().close()
        except (RedisError, OSError) as exc:
            # kombu has failed to delete the binding of a broadcast queue, or to read a BRPOP's
            # reply, and has neither requeued the jobs nor closed the connections. It would not
            # close the other channels of this connection either.
            logger.info(
                "Redis did not answer, or refused a command, while a channel was closed (%s): the "
                "binding of its broadcast queue may stay there, which does no harm.",
                exc,
            )
            # Without this client kombu tries neither again. The pool closes its connection.
            self.__dict__.pop("client", None)
            self._in_poll = None
            super().close()
        finally:
            self._leave_pool()
