"""Pools of plain connections: who closes what they have opened."""

from __future__ import annotations

from redis import ConnectionPool, Redis

from .connections import Params


class ClosingClient(Redis):
    """A client that closes its pool when it is closed. redis-py leaves a pool that it was given to
    the garbage collector: its connections stay open until that runs, hours in an idle process."""

    def close(self) -> None:
        super().close()
        self.connection_pool.disconnect()


def client_of_its_own(params: Params) -> ClosingClient:
    """Return a client with a pool of its own, for a caller who closes it."""
    return ClosingClient(connection_pool=ConnectionPool(**params))
