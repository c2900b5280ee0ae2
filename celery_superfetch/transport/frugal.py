"""kombu's Redis channel without connections that it does not use.

Stock kombu gives each channel two pools, opens one connection of each to ping the server, and keeps
both until the channel is closed. Plans of managed services are sold by their number.
``Channel`` inherits from this one, and kombu calls all of the methods. If the process dies, its
connections close; nothing here has to last.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis

from ..model.lazy import lazy_property
from ..store.wire.connections import Params
from ..store.wire.pools import SharedPool, shared_pool


class FrugalChannel(redis.Channel):
    """A channel that shares its plain connections with the others of its process, and has one for
    BRPOP only while it consumes a queue without acks."""

    _pool: Any = None  # the shared one
    _closing_connection: Any = None  # kombu's for BRPOP, while it is closed on purpose

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__.pop("client", None)  # a plain one, by which kombu has pinged the server

    def _get_pool(self, asynchronous: bool = False) -> Any:
        """Return the pool of all channels of this process that speak to the server, and of its
        owner; for BRPOP and broadcasts one of its own, which has to know its channel."""
        made = super()._get_pool(asynchronous)
        if asynchronous or not self._is_shareable(made):
            return made
        pool = shared_pool(self._params_of(made))
        pool.enter(self)
        return pool

    def here(self) -> Params:
        """Return the parameters of connections to the channel's database."""
        params: Params = self._connparams()
        return params

    def _is_shareable(self, made: Any) -> bool:
        return True

    def _params_of(self, made: Any) -> Params:
        """Return the parameters of connections of the pool that kombu has made."""
        return self.here()

    def _disconnect_pools(self) -> None:
        if isinstance(self._pool, SharedPool):  # others may use it
            self._pool.leave(self)
            self._pool = None
        super()._disconnect_pools()

    @lazy_property
    def client(self) -> Any:
        """kombu's client for BRPOP. While the channel is made, kombu pings the server by it: then
        it is a plain one, or each producer would have a connection that it never uses again."""
        return self._create_client(asynchronous=self._registered)

    def _close_idle_client(self) -> None:
        """Close the BRPOP connection once no queue is consumed by it. It would lie idle, and kombu
        takes it for a lost broker when a server closes it (``timeout``), or a firewall."""
        client = self.__dict__.get("client")
        if client is None or self._in_poll or self.active_queues or self.connection is None:
            return  # a reply that is outstanding may bring a message: it is read first
        connection, pool = client.connection, client.connection_pool
        if connection is None:  # the application's own use of it, command by command
            return
        self.connection.cycle.forget(self, client)
        del self.__dict__["client"]
        client.connection = None
        # Celery's loop is not to hear of it: before kombu 5.7 it would poll this channel no more.
        self._closing_connection = connection
        try:
            connection.disconnect()
        finally:
            self._closing_connection = None
        pool.release(connection)

    def _on_connection_disconnect(self, connection: Any) -> None:
        if connection is not self._closing_connection:
            super()._on_connection_disconnect(connection)

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
        if not self.closed and self.auto_delete_queues.intersection(self._fanout_queues):
            # kombu deletes the bindings of broadcasts where a client was made, and by that alone.
            self.__dict__.setdefault("client", self._create_client())
        super().close()
