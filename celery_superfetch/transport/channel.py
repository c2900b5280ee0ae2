"""kombu's Redis channel with reliable fetch: consumers claim jobs, instead of popping them.

kombu makes the channel and calls it, in the thread that uses the connection: a producer's, or that
of the worker's event loop. Producers call ``basic_publish``, consumers ``basic_consume``,
``basic_get`` and ``close``. ``app/queues.py`` calls ``list_for``, ``bound_queues`` and
``expires_of``. Most methods with an underscore override kombu's. The channel's
``FetchLoop`` claims its jobs, and its ``QoS`` delivers them, in the thread of the event loop.

A claimed job is in the private list of its owner (this process) in Redis until it is acked. If the
process dies, a reaper finds the owner dead and recovers these jobs. A message whose publish was
under way is on its queue or was not sent. If it is a step (see ``_put``), its note in the claim was
written with it or not at all. A message of ``basic_get(no_ack=True)`` is lost, as with stock kombu.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

kombu transport.redis:Channel.
    know from which queues to claim: _basic_cancel(consumer_tag)
    know the lists of a queue: _lookup(exchange,routing_key) _get_message_priority(message,reverse=)
    publish a step, and put back what a cancelled read has taken: _put(queue,message)
    leave only the consumers without acks to kombu: _brpop_read()
    count a queue's messages on a full server, too: _size(queue)
    declare again bindings that the server has lost: _queue_bind(exchange,routing_key,pattern,queue)
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

import kombu
from kombu.exceptions import OperationalError
from kombu.transport import redis
from kombu.utils import json
from redis import Redis
from redis.exceptions import ConnectionError

from ..model.config import DURATION_MAX_S, Config
from ..model.lazy import lazy_property
from ..model.log_text import one_line_each
from ..model.queue_list import ListNames
from ..model.step import handing
from ..store.database import Database, is_wrong_type
from ..store.redis.connections import (
    NotServed,
    Params,
    following_params,
    name_of,
    publishing,
    repeatable,
    with_client_defaults,
)
from ..store.redis.server import FULL_TEXT, as_connection_error, even_if_full
from ..store.redis.slots import Slot, address_of, slot_of
from .fetch.queue_lists import QueueLists
from .frugal import FrugalChannel
from .intake import Intake
from .step_publishing import is_published_as, publish_step

if TYPE_CHECKING:
    from ..owner.owner import Owner
    from ..store.private_lists import PrivateLists
    from .fetch.fetch_loop import FetchLoop

logger = one_line_each(logging.getLogger(__name__))


#: kombu deletes a queue that is not used for its x-expires (ms).
EXPIRES_QUEUES = kombu.VERSION >= (5, 7)


def _expires_ms(argument: Any) -> int:
    """Return the x-expires (ms) that the argument of a declaration means; 0: never, also if kombu
    cannot read it."""
    try:
        return min(int(argument or 0), int(DURATION_MAX_S * 1000))
    except (TypeError, ValueError):
        return 0


def _qos(channel: Channel) -> Any:
    """Make a channel's QoS. kombu calls it on the first consume: a producer imports none of it."""
    from .deliveries import QoS

    return QoS(channel)


class Channel(FrugalChannel):
    """kombu's Redis channel. Queues whose consumer acks are fetched reliably; kombu's BRPOP serves
    the others."""

    _fetch: FetchLoop | None = None
    _steps: PrivateLists | None = None  # publishes steps: messages that a job sends as it ends
    #: The message that is being published goes to several queues; ``_lookup``, which kombu calls
    #: during a publish, sets it.
    _several = False
    _lists_are_stale = False  # the consumed queues have changed since ``lists`` was computed
    intake = Intake()  # takes jobs out of delivery; a Celery worker sets its own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pid = os.getpid()
        #: Queue fetched reliably -> its consumer's callback. kombu's own table is one for the whole
        #: connection: in it two channels that consume one queue would share a callback.
        self._callbacks: dict[str, Callable[[Any], Any]] = {}
        self._queue_of_tag: dict[str, str] = {}  # of the consumers of these queues
        self._expires_ms_by_queue: dict[str, int] = {}  # x-expires of the declared queues
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
    def database_name(self) -> str:
        """The name of the database, the same in each process that uses it."""
        return name_of(self.server_params())

    def failover_targets(self) -> list[Params]:
        """Return the connection parameters of the other servers of a failover list. For a cluster
        there are none: the parameters of ``server_params`` name all of its nodes."""
        places: list[Params] = []
        if (slot := self.server_params().get("slot")) and slot.clustered:
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
        return with_client_defaults(following_params(params, self._slot(params)))

    def _slot(self, params: Params) -> Slot | None:
        """Return the cluster slot of the key prefix, with the nodes to ask for it; None if the
        prefix has no hash tag."""
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
        return self._expires_ms_by_queue.get(queue, 0)

    def queue_declare(self, queue: Any = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue. For a passive declaration it exists if it has messages, or if this
        channel consumes it. Otherwise a passive declaration (``SimpleQueue.qsize``) would fail with
        404 after the last message."""
        declared = super().queue_declare(queue, passive and queue not in self._callbacks, **kwargs)
        if EXPIRES_QUEUES:
            arguments = kwargs.get("arguments") or {}
            self._expires_ms_by_queue[declared[0]] = _expires_ms(arguments.get("x-expires"))
            self._lists_are_stale = True
        return declared

    def _queue_bind(self, exchange: str, *binding: Any) -> None:
        """Store the binding of a queue for producers. A server over its memory limit refuses that,
        even if the binding is stored already. This is only logged: a worker that failed to start
        could not empty the server's queues. A producer that finds no binding stores it again
        (``_lookup``)."""
        with even_if_full(binding[-1], exchange), as_connection_error():
            super()._queue_bind(exchange, *binding)

    @property
    def consumes(self) -> bool:
        """True if this channel fetches jobs reliably; any thread may read it."""
        return bool(self._callbacks)

    @property
    def lists(self) -> QueueLists:
        """The queue lists that this channel consumes. They are computed again at the first access
        after a change, and not at each change: kombu adds a consumer's thousand queues one by
        one."""
        if self._lists_are_stale:
            self._lists_are_stale = False
            lists = {name: self._lists_of(name) for name in self._callbacks}
            self._lists.set_queues(lists, self.expires_of)
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
            owner = owner_for(
                self.server_params(), config, self.failover_targets(), poller.executor
            )
            self._fetch = FetchLoop(
                owner,
                poller,
                lists=lambda: self.lists,
                credit=self.qos.credit,
                deliver=self.qos.deliver,
                requeue_waiting=self.qos.requeue_waiting,
                requeue_strays=self.qos.requeue_strays,
            )
            poller.add_fetch_loop(self._fetch)
        return self._fetch

    def consumer_of(self, queue_list: str) -> Callable[[Any], Any] | None:
        """Return the callback of the consumer that gets the jobs of a queue list; None after it was
        cancelled."""
        return self._callbacks.get(self.lists.queue(queue_list))

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: Any, *args: Any, **kw: Any
    ) -> Any:
        exchanges = {binding.exchange for binding in self.state.queue_bindings(queue)}
        if not no_ack and not any(map(self.is_broadcast, exchanges)):
            self.fetch  # noqa: B018 - made now: a wrong option has to be raised to the caller
            self._callbacks[queue] = callback
            self._queue_of_tag[consumer_tag] = queue
            self._lists_are_stale = True
        return super().basic_consume(queue, no_ack, callback, consumer_tag, *args, **kw)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._queue_of_tag.pop(consumer_tag, None)
        if queue is not None and queue not in self._queue_of_tag.values():
            # Before kombu asks which queues are left to its BRPOP (``active_queues``).
            del self._callbacks[queue]
            self._lists_are_stale = True
            self.fetch.cancel(set(self._lists_of(queue)))
        return super()._basic_cancel(consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        if no_ack:
            return self._pop(queue)
        lists = dict.fromkeys(self._lists_of(queue), self.expires_of(queue))
        fetch, lease = self.fetch, None
        try:
            while (lease := fetch.claim_one(lists)) is not None:
                if (message := self.qos.receive(lease)) is not None:
                    self.owner.leases.deliver(lease)
                    return message
            return None
        except BaseException:
            fetch.may_have_strays = True
            if lease is not None:
                # The caller does not get its message. The job may count as delivered, and so be no
                # stray: it would stay claimed until the process ends.
                self.qos.drop(lease.job)
                self.owner.leases.requeue([lease])
            raise

    def _pop(self, queue: str) -> Any:
        """Return a message for ``basic_get(no_ack=True)``; None if the queue is empty. It is marked
        as redelivered if the server has a history of it: the message itself does not show that it
        was requeued. If the process dies now, it is lost, as with stock kombu."""
        from ..store.queues import Queues
        from .deliveries import mark_redelivered

        lists, expires = self._lists_of(queue), self.expires_of(queue)
        taken = Queues(self.database).pop_message(queue, lists, expires)
        if taken is None:
            return None
        payload, is_redelivered = taken
        message = json.loads(payload)
        if is_redelivered:
            mark_redelivered(message)
        return self.Message(message, channel=self)

    def put_back(self, message: Any) -> None:
        """Push a message that a consumer without acks did not get to the queues that it was
        published to, marked as redelivered."""
        payload = {**message.serializable(), "redelivered": True}
        info = message.delivery_info
        for queue in self.bound_queues(info["exchange"], info["routing_key"]):
            self._put(queue, payload)

    @lazy_property
    def _list_names(self) -> ListNames:
        return ListNames(self.sep, self.priority_steps)

    def _lists_of(self, queue: str) -> list[str]:
        return [self._list_of(queue, step) for step in self.priority_steps]

    def _list_of(self, queue: str, step: int) -> str:
        """Return the list of a queue for one of ``priority_steps``. Celery's documentation names
        these lists (Redis Message Priorities); stock producers push to them."""
        return self._list_names.of(queue, step)

    def list_for(self, queue: str, message: Mapping[str, Any]) -> str:
        """Return the list of a queue to which a message goes, by its priority."""
        priority = self._get_message_priority(message, reverse=False)
        return self._list_of(queue, self.priority(priority))

    def bound_queues(self, exchange: str, routing_key: str) -> Collection[str]:
        """Return the queues that are bound to an exchange by a routing key."""
        return self._lookup(exchange, routing_key) or ()

    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Delete a queue's messages, suspects and parked jobs; return how many there were."""
        from ..store.queues import Queues

        count = int(super().queue_purge(queue, **kwargs))
        return count + Queues(self.database).purge(self._lists_of(queue))

    def _size(self, queue: str) -> int:
        try:
            return int(super()._size(queue))
        except self.ResponseError as exc:
            if is_wrong_type(exc):
                # The key is no queue. The fetch loop logs that; a worker that starts must not fail,
                # since it has other queues, too.
                return 0
            if FULL_TEXT not in str(exc):
                raise
            # kombu asks in a transaction, which Redis 6.2 refuses over its memory limit.
            from ..store.queues import Queues

            lengths = Queues(self.database).lengths(self._lists_of(queue))
            return sum(length for length, _ in lengths if isinstance(length, int))

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except NotServed as exc:
            # The cluster has moved the slot since BRPOP was sent. kombu sends it again.
            raise Empty from exc

    def basic_publish(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        properties = message["properties"]
        # Only messages of tasks have a task id here: Celery gives them both properties, in protocol
        # 1 and 2, while replies, and results of rpc://, have no ``reply_to``.
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
            raise ConnectionError("the channel was closed while it published a message") from exc
        finally:
            publishing.reset(token)

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        """Push a message to a queue. If it is a step (a message that a running job sends because it
        ends: its retry, or the next task of its chain), a script pushes it and notes it in the
        job's claim, so that a second run of the job does not send it again."""
        step = handing.get()
        if step is None:
            return super()._put(queue, message, **kwargs)
        # Both calls are repeatable: one only asks, and the steps note keeps a second try of the
        # other from publishing the step again.
        with repeatable():
            is_step = is_published_as(step, message, self)
        if not is_step:
            return super()._put(queue, message, **kwargs)
        if self._steps is None or self._steps.client.connection_pool is not self.pool:
            from ..store.private_lists import PrivateLists

            self._steps = PrivateLists(self.database)
        ms, name = self.expires_of(queue), step.name(queue if self._several else "")
        # The step goes to the first of these lists; the x-expires of all is renewed.
        lists = [self.list_for(queue, message), *(self._lists_of(queue) if ms else ())]
        push = partial(self._steps.publish_step, name, redis.dumps(message), lists, ms)
        with repeatable():
            publish_step(step, push)

    def _lookup(self, exchange: str, routing_key: str, default: Any = None) -> Any:
        """Return the queues that are bound to an exchange by a routing key, and note whether they
        are several. If a task would go to no queue, declare the bindings of this process again;
        raise OperationalError if that does not help."""
        task = publishing.get()
        with repeatable():
            queues = super()._lookup(exchange, routing_key, default)
            if not queues and task:
                queues = self._bind_again(task, exchange, routing_key)
        self._several = len(queues or ()) > 1
        return queues

    def _bind_again(self, task: str, exchange: str, routing_key: str) -> Any:
        """Declare the bindings of this process to an exchange again; return the queues that are
        then bound to it by a routing key."""
        for binding in self.state.exchanges.get(exchange, {}).get("table", ()):
            super()._queue_bind(exchange, *binding)
        if not (queues := super()._lookup(exchange, routing_key)):
            raise OperationalError(
                f"task {task} was not sent: no queue is bound to exchange {exchange!r} by "
                f"routing key {routing_key!r}, on the server or in this process. Name its queue "
                "where you send it, or start a worker that serves it"
            )
        logger.warning(
            "Queue bindings were missing on the server, and were declared again (exchange=%r, "
            "task=%s). The task was sent. Look for FLUSHALL, DEL and eviction.",
            exchange,
            task,
        )
        return queues

    def close(self) -> None:
        fetch = self._fetch
        if fetch is not None:
            fetch.poller.remove_fetch_loop(fetch)
        if self._pid != os.getpid():
            # kombu's pools close the channels that a forked child has inherited. The connections
            # are the parent's.
            self.closed = True
            return
        try:
            if fetch is not None and not self.closed:
                fetch.cancel()  # all lists
            super().close()
        except BaseException:  # also the end of a greenlet, and what a signal handler raises
            if fetch is not None:
                # The calls above may have been interrupted before they did this. The closed reads
                # make a reconcile due, by which ``leave`` requeues a job that has landed meanwhile.
                fetch.reads.close()
                fetch.requeue_unseen()
                self.qos.restore_unacked_once()
            raise
        finally:
            if fetch is not None:
                self.qos.requeue_strays()
                fetch.upkeep.leave()
