"""A network between a machine and the Redis server that partitions, delays and loses packets.

`tc netem` needs a kernel module that many machines lack, so a proxy does to each connection what
its two ends would notice: TCP hides a lost packet behind a retransmission, which is a delay.
"""

from __future__ import annotations

import asyncio
import random

from support.servers.proxy import FaultProxy

#: Seconds until TCP sends a packet that was lost again; each further loss doubles them.
RETRANSMISSION_S = 0.2
#: Retransmissions after which a packet arrives in any case.
MAX_LOSSES = 5


class Network(FaultProxy):
    """A proxy whose two directions fail independently of each other.

    What is sent into a partition arrives when it ends, as retransmissions do: also if the client
    has given up and closed its connection meanwhile, which the server learns after that.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._dice = random.Random(port)
        self._latency_s = 0.0
        self._loss = 0.0
        #: By whether it leads to the server: set while packets get through.
        self._open = {True: asyncio.Event(), False: asyncio.Event()}
        for direction in self._open.values():
            direction.set()

    def partition(self, *, to_server: bool) -> None:
        """Let no packet through in one direction, to the server or back, until `restore`."""
        self._loop.call_soon_threadsafe(self._open[to_server].clear)

    def delay(self, seconds: float) -> None:
        """Let each packet take so many seconds in each direction, until `restore`."""
        self._latency_s = seconds

    def lose(self, share: float) -> None:
        """Lose this share of the packets in each direction, until `restore`."""
        self._loss = share

    def restore(self) -> None:
        """End the partition, the delay and the loss."""
        self._latency_s = self._loss = 0.0
        for direction in self._open.values():
            self._loop.call_soon_threadsafe(direction.set)

    async def admits(self) -> bool:
        """Refuse what began in a partition when it is over: a handshake needs both directions."""
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
