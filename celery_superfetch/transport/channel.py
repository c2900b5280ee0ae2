"""kombu's Redis channel with reliable fetch: consumers claim jobs, instead of popping them.

kombu makes the channel and calls it, in the thread that uses the connection: a producer's, or that
of the worker's event loop. Producers call ``basic_publish``, consumers ``basic_consume``,
``basic_get`` and ``close``. Most methods with an underscore override kombu's. The channel's
``FetchLoop`` calls ``deliver`` for each claimed job, in the thread of the event loop.

A claimed job is in the private list of its owner (this process) in Redis until it is acked. If the
process dies, a reaper finds the owner dead and recovers these jobs. A message whose publish was
under way is on its queue or was not sent. If it is a step (see ``_put``), its note in the claim was
written with it or not at all. A message of ``basic_get(no_ack=True)`` is lost, as with stock kombu.

Foreign names:

kombu transport.redis:Channel.
    know from which queues to claim: _update_queue_cycle() _basic_cancel(consumer_tag)
    know the lists of a queue: _q_for_pri(queue,pri) _lookup(exchange,routing_key)
        _get_message_priority(message,reverse=)
    publish a step: _put(queue,message)
    leave to kombu what wants no ack, and no more: active_queues _fanout_queues _brpop_read()
    say of a message without ack that it was delivered before: _get(queue)
    count and purge suspects, too: _size(queue) _purge(queue)
    say that a queue exists: _has_queue(queue)
    declare bindings that are gone again: _queue_bind(exchange,routing_key,pattern,queue)
    keep x-expires: _new_queue(queue) _expires>=5.7
    leave a server that became a replica: _connparams(asynchronous)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import partial
from queue import Empty
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError
from kombu.transport import redis
from kombu.utils import json
from redis import Redis
from redis.exceptions import ConnectionError

from ..model.config import LONGEST, Config
from ..model.lazy import lazy_property
from ..model.log_text import one_line_each
from ..model.step import handing
from ..store.database import Database
from ..store.redis.connections import NotServed, Params, leading_home, name_of, ours, publishing
from ..store.redis.server import FULL, even_if_full, tried_again
from ..store.redis.slots import Slot, address_of, slot_of
from .fetch.queue_lists import QueueLists
from .frugal import FrugalChannel
from .intake import Intake
from .steps import is_published_as, publish_step

if TYPE_CHECKING:
    from ..owner.in_flight.lease import Lease
    from ..owner.owner import Owner
    from ..store.private_lists import PrivateLists
    from .fetch.fetch_loop import FetchLoop

logger = one_line_each(logging.getLogger(__name__))


def _qos(channel: Channel) -> Any:
    """Make a channel's QoS. kombu calls it on the first consume: a producer imports none of it."""
    from .deliveries import QoS

    return QoS(channel)


class Channel(FrugalChannel):
    """kombu's Redis channel. Queues whose consumer acks are fetched reliably; kombu's BRPOP serves
    the others."""

    _fetch: FetchLoop | None = None
    _steps: PrivateLists | None = None  # publishes steps: messages that a job sends as it ends
    _several = False  # the message that is being published goes to several queues
    _lists_are_stale = False  # the consumed queues have changed since ``lists`` was computed
    intake = Intake()  # takes jobs out of delivery; a Celery worker sets its own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pid = os.getpid()
        #: Queue fetched reliably -> its consumer's callback. kombu's own table is one for the whole
        #: connection: in it two channels that consume one queue would share a callback.
        self._callbacks: dict[str, Callable[[Any], Any]] = {}
        self._queue_of_tag: dict[str, str] = {}  # of the consumers of these queues
        super().__init__(*args, **kwargs)
        # With ack_emulation=False kombu would choose a QoS whose acks do not reach the server.
        self.QoS = _qos
        self._lists = QueueLists(self.queue_order_strategy)

    @property
    def database(self) -> Database:
        """The database, without the app's options: a producer's calls need none of them, and must
        not fail because one is wrong."""
        config = Config(global_keyprefix=self.global_keyprefix)
        return Database(Redis(connection_pool=self.pool), config)

    @lazy_property
    def place(self) -> str:
        """The name of the database, the same in each process that uses it."""
        return name_of(self.here())

    def elsewhere(self) -> list[Params]:
        """Return the connection parameters of the other servers of a failover list. Of a cluster,
        ``here`` has all nodes."""
        places: list[Params] = []
        if (slot := self.here().get("slot")) and slot.clustered:
            return places
        # A copy of the channel, with a connection that names the other server, computes them.
        port = self.connection.default_port
        for url in dict.fromkeys(self.connection.client.alt):
            client, channel = self.connection.client.clone(), copy(self)
            client.switch(url)
            channel.connection = SimpleNamespace(client=client, default_port=port)
            places.append(channel._connparams())
        return places

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        """Return kombu's parameters for connections that follow the primary through failovers, have
        a timeout, and bear the package's name on the server."""
        params: dict[str, Any] = super()._connparams(asynchronous)
        return ours(leading_home(params, self._slot(params)))

    def _slot(self, params: Params) -> Slot | None:
        """Return the slot of the key prefix; None if it has no hash tag."""
        if "path" in params:  # a Unix socket: no cluster
            return None
        seeds = [(params["host"], params["port"])]
        seeds += map(address_of, self.connection.client.alt or ())
        return slot_of(self.global_keyprefix, seeds)

    @property
    def active_queues(self) -> list[str]:
        """Return the queues that kombu's BRPOP serves: those whose consumer wants no acks."""
        return [queue for queue in super().active_queues if queue not in self._callbacks]

    def expires_of(self, queue: str) -> int:
        """Return the x-expires of a queue (ms); 0 for none."""
        expires = getattr(self, "_expires", {})  # since kombu 5.7
        return min(int(expires.get(queue) or 0), int(LONGEST * 1000))

    def _new_queue(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super()._new_queue(queue, *args, **kwargs)
        self._update_queue_cycle()  # its x-expires may have changed

    def _queue_bind(self, exchange: str, *binding: Any) -> None:
        """Store the binding of a queue for producers. A server over its memory limit refuses that,
        even if the binding is stored already. This is only logged: a worker that failed to start
        could not empty the server's queues. A producer that finds no binding stores it again
        (``_lookup``)."""
        with even_if_full(binding[-1], exchange), tried_again():
            super()._queue_bind(exchange, *binding)

    def _update_queue_cycle(self) -> None:
        super()._update_queue_cycle()
        self._lists_are_stale = True

    @property
    def consumes(self) -> bool:
        """Whether this channel fetches jobs reliably; any thread may read it."""
        return bool(self._callbacks)

    @property
    def lists(self) -> QueueLists:
        """The queue lists that this channel consumes. They are computed again at the first access
        after a change, and not at each change: kombu adds a consumer's thousand queues one by
        one."""
        if self._lists_are_stale:
            self._lists_are_stale = False
            lists = {name: self._lists_of(name) for name in self._callbacks}
            self._lists.serve(lists, self.expires_of)
        return self._lists

    @property
    def owner(self) -> Owner:
        return self.fetch.owner

    @property
    def fetch(self) -> FetchLoop:
        """The fetch loop, made at the first access, by a consume: a producer needs none. Raise
        ``ConfigError`` for a wrong option."""
        if self._fetch is None:
            from ..owner.process_owners import owner_for
            from .fetch.fetch_loop import FetchLoop
            from .versions import check_versions

            check_versions()
            poller, config = self.connection.cycle, self.connection.config
            owner = owner_for(self.here(), config, self.elsewhere(), poller.runner)
            self._fetch = FetchLoop(
                owner,
                poller,
                lists=lambda: self.lists,
                credit=self.qos.credit,
                deliver=self.deliver,
                requeue_waiting=self.qos.requeue_waiting,
            )
        return self._fetch

    def deliver(self, lease: Lease) -> bool:
        """Call the consumer with a claimed job; return False if the job was settled or requeued
        instead. If something fails before the call, the job stays in the backlog, and the error is
        raised."""
        callback = self._callbacks.get(self.lists.queue(lease.job.queue_list))
        if callback is None:  # the consumer was cancelled after the claim
            self.fetch.requeue([lease])
            return False
        try:
            is_settled = self.intake.intercept(lease, self)
            message = None if is_settled else self.qos.receive(lease)
        except BaseException:  # also the end of a greenlet, and what a signal handler raises
            # The close of the channel requeues the backlog, and what it does not have would stay.
            self.fetch.backlog.ready.appendleft(lease)
            raise
        if message is None or self.intake.park(message):
            return False
        try:
            callback(message)
        except Exception as exc:
            if not self.intake.refuse(message, exc):
                raise
        return True

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: Any, *args: Any, **kw: Any
    ) -> Any:
        if not no_ack and queue not in self._fanout_queues:
            self.fetch  # noqa: B018 - made now: a wrong option has to be raised to the caller
            self._callbacks[queue] = callback
            self._queue_of_tag[consumer_tag] = queue
        return super().basic_consume(queue, no_ack, callback, consumer_tag, *args, **kw)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._queue_of_tag.pop(consumer_tag, None)
        result = super()._basic_cancel(consumer_tag)
        if queue is not None and queue not in self._queue_of_tag.values():
            del self._callbacks[queue]
            self.fetch.cancel(set(self._lists_of(queue)))
            self._update_queue_cycle()
        return result

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        if no_ack:
            return super().basic_get(queue, no_ack, **kwargs)
        lists = dict.fromkeys(self._lists_of(queue), self.expires_of(queue))
        while (lease := self.fetch.claim_one(lists)) is not None:
            if (message := self.qos.receive(lease)) is not None:
                self.owner.leases.deliver(lease)
                return message
        return None

    def _get(self, queue: str) -> Any:
        """Return a message for ``basic_get(no_ack=True)``. It is marked as redelivered if the
        server has a history of it: the message itself does not show that it was requeued. If the
        process dies now, it is lost, as with stock kombu."""
        from ..store.queues import Queues
        from .deliveries import mark_redelivered

        taken = Queues(self.database).take(self._lists_of(queue), self.expires_of(queue))
        if taken is None:
            raise Empty
        payload, is_redelivered = taken
        message = json.loads(payload)
        if is_redelivered:
            mark_redelivered(message)
        return message

    def _lists_of(self, queue: str) -> list[str]:
        return [self._q_for_pri(queue, pri) for pri in self.priority_steps]

    def list_for(self, queue: str, message: Mapping[str, Any]) -> str:
        """Return the list of a queue to which a message goes, by its priority."""
        return str(self._q_for_pri(queue, self._get_message_priority(message, reverse=False)))

    def bound_queues(self, exchange: str, routing_key: str) -> Collection[str]:
        """Return the queues that are bound to an exchange by a routing key."""
        return self._lookup(exchange, routing_key) or ()

    def _purge(self, queue: str) -> int:
        """Delete a queue's messages, suspects and parked jobs; return how many there were."""
        from ..store.queues import Queues

        return int(super()._purge(queue)) + Queues(self.database).purge(self._lists_of(queue))

    def _size(self, queue: str) -> int:
        try:
            return int(super()._size(queue))
        except self.ResponseError as exc:
            if "WRONGTYPE" in str(exc):
                # The key is no queue. The fetch loop logs that; a worker that starts must not fail,
                # since it has other queues, too.
                return 0
            if FULL not in str(exc):
                raise
            # kombu asks in a transaction, which Redis 6.2 refuses over its memory limit.
            from ..store.queues import Queues

            lengths = Queues(self.database).lengths(self._lists_of(queue))
            return sum(length for length, _ in lengths if isinstance(length, int))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        """Return whether a queue exists: it has messages, or this channel consumes it. Otherwise a
        passive declaration (``SimpleQueue.qsize``) would fail with 404 after the last message."""
        return queue in self._callbacks or bool(super()._has_queue(queue, **kwargs))

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except NotServed as exc:
            # The cluster has moved the slot since BRPOP was sent. kombu sends it again.
            raise Empty from exc

    def basic_publish(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        properties = message["properties"]
        # Celery's messages of tasks have both properties, in protocol 1 and 2; replies, and results
        # of rpc://, have no ``reply_to``.
        task = properties.get("correlation_id") if "reply_to" in properties else None
        token, self._several = publishing.set(task), False
        try:
            return super().basic_publish(message, *args, **kwargs)
        except AttributeError as exc:
            if self.connection is not None:
                raise
            # Another thread has closed this channel, because the connection was lost. After a
            # ConnectionError kombu publishes again on a new channel. After AttributeError it would
            # not, and a task's retry would be lost.
            raise ConnectionError("the channel was closed while it published") from exc
        finally:
            publishing.reset(token)

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        """Push a message to a queue. If it is a step (a message that a running job sends because it
        ends: its retry, or the next task of its chain), a script pushes it and notes it in the
        job's claim, so that a second run of the job does not send it again."""
        step = handing.get()
        if step is None or not is_published_as(step, message, self):
            return super()._put(queue, message, **kwargs)
        if self._steps is None or self._steps.client.connection_pool is not self.pool:
            from ..store.private_lists import PrivateLists

            self._steps = PrivateLists(self.database)
        ms, name = self.expires_of(queue), step.name(queue if self._several else "")
        # The step goes to the first of these lists; the x-expires of all is renewed.
        lists = [self.list_for(queue, message), *(self._lists_of(queue) if ms else ())]
        publish_step(step, partial(self._steps.publish_step, name, redis.dumps(message), lists, ms))

    def _lookup(self, exchange: str, routing_key: str, default: Any = None) -> Any:
        """Return the queues that are bound to an exchange by a routing key. If a task would go to
        none, declare the bindings of this process again; raise OperationalError if that does not
        help."""
        queues = super()._lookup(exchange, routing_key, default)
        self._several = len(queues or ()) > 1
        if queues or not (task := publishing.get()):
            return queues
        for binding in self.state.exchanges.get(exchange, {}).get("table", ()):
            super()._queue_bind(exchange, *binding)
        if not (queues := super()._lookup(exchange, routing_key, default)):
            raise OperationalError(
                f"task {task} was not sent: on the server no queue is bound to exchange "
                f"{exchange!r} by routing key {routing_key!r}, and this process knows none. Name "
                "its queue where you send it, or start a worker that serves it"
            )
        logger.warning(
            "The bindings of exchange %r were gone from the server (by FLUSHALL, or evicted), and "
            "task %s on its way to no queue. They were declared again, and it was sent.",
            exchange,
            task,
        )
        return queues

    def close(self) -> None:
        if self._pid != os.getpid():
            # kombu's pools close the channels that a forked child has inherited. The connections
            # are the parent's.
            self.closed = True
            return
        fetch = self._fetch
        if fetch is not None and not self.closed:
            fetch.cancel()  # all lists
        super().close()
        if fetch is not None:
            fetch.upkeep.leave()
