"""Imitate a network between a machine and the Redis server that can be partitioned, delay packets
and lose them.

`fleet.py` makes one for each machine, and `harms.py` breaks them. `tc netem` needs a kernel module
that many machines do not have. So a proxy imitates what both ends of a connection would notice: TCP
sends a lost packet again, so a loss is a delay.
"""

from __future__ import annotations

import asyncio
import random

from support.servers.proxy import FaultProxy

#: Seconds until TCP sends a lost packet again; each further loss of the same packet doubles them.
RETRANSMISSION_S = 0.2
#: Retransmissions after which a packet arrives in any case.
MAX_LOSSES = 5


class Network(FaultProxy):
    """A proxy whose two directions fail independently of each other.

    Data that is sent during a partition arrives when it ends, as retransmissions do. So a command
    arrives even if its client has closed the connection meanwhile: the server receives the command
    first, and then the end of the connection.

    Arguments:
        port: the port of the Redis server; also the seed of the losses.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._dice = random.Random(port)
        self._latency_s = 0.0
        self._loss = 0.0
        #: True (to the server) or False (from it) -> an event, set while packets get through.
        self._open = {True: asyncio.Event(), False: asyncio.Event()}
        for direction in self._open.values():
            direction.set()

    def partition(self, *, to_server: bool) -> None:
        """Stop all packets in one direction, to the server or from it, until `restore`."""
        self._loop.call_soon_threadsafe(self._open[to_server].clear)

    def delay(self, seconds: float) -> None:
        """Delay each packet by so many seconds in each direction, until `restore`."""
        self._latency_s = seconds

    def lose(self, share: float) -> None:
        """Lose a share of the packets (0 to 1) in each direction, until `restore`."""
        self._loss = share

    def restore(self) -> None:
        """End the partition, the delay and the loss."""
        self._latency_s = self._loss = 0.0
        for direction in self._open.values():
            self._loop.call_soon_threadsafe(direction.set)

    async def admits(self) -> bool:
        """Wait as long as the handshake of a new connection takes. Return False for a connection
        that was begun during a partition: its handshake needs both directions."""
        complete = all(direction.is_set() for direction in self._open.values())
        for direction in self._open.values():
            await direction.wait()
        await asyncio.sleep(2 * self._latency_s)
        return complete and await super().admits()

    async def travel(self, *, upstream: bool) -> None:
        await super().travel(upstream=upstream)
        await asyncio.sleep(self._latency_s)
        wait_s = RETRANSMISSION_S
        for _ in range(MAX_LOSSES):
            if self._dice.random() >= self._loss:
                break
            await asyncio.sleep(wait_s)
            wait_s *= 2
        await self._open[upstream].wait()
