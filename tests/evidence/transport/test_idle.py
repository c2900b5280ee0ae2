"""What a worker with nothing to do sends, and how many a job wakes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic

import redis

from celery_superfetch.model.config import Config
from celery_superfetch.model.owner_rank import MOST_READS
from celery_superfetch.owner.owner import BLOCK_TIMEOUT
from support.servers.commands import looked
from support.servers.server import Server
from support.waiting import eventually
from support.workers.inbox import Inbox, publish

#: Celery's own events, mingle and gossip are off.
QUIET = ("--without-mingle", "--without-gossip", "--without-heartbeat")
CONSUMERS = 6
#: Commands of a pass that finds nothing to do, and by which it is known.
OF_A_PASS, PASS = 7, " superfetch:last_pass "


def heard(own: Server, seconds: float) -> tuple[list[str], float]:
    """What the server is sent for some time, without what scripts call; and how long that was."""
    commands, began = [], monotonic()
    with (
        redis.Redis.from_url(own.url(), socket_timeout=seconds) as client,
        client.monitor() as all_,
    ):
        for said in all_.listen():  # there is a heartbeat now and then
            if said["client_type"] != "lua":
                commands.append(said["command"])
            if monotonic() > began + seconds:
                break
    return commands, monotonic() - began


def test_an_idle_worker_sends_few_commands(fresh_server, worker):
    """In the time of its longest wait, after which all of them begin anew. With one queue and with
    twenty, side by side."""

    def idle(queues: int) -> tuple[list[str], float]:
        own = fresh_server()
        worker(url=own.url(), queues=[f"q{n}" for n in range(queues)], concurrency=1, args=QUIET)
        client = own.client()
        eventually(lambda: sum("b" in c["flags"] for c in client.client_list()) == MOST_READS)
        heard(own, 2 * Config(app_name="shop").heartbeat_interval)  # what it sends at its start
        return heard(own, BLOCK_TIMEOUT + 2)

    with ThreadPoolExecutor() as side_by_side:
        of_one, of_twenty = side_by_side.map(idle, (1, 20))
    for most, (commands, seconds) in ((0.5, of_one), (1.5, of_twenty)):
        # One worker of a fleet makes the passes; how many fall into this time depends on when it
        # began, and the first and the last may be cut in two.
        passes = sum(command.startswith("EVALSHA") and PASS in command for command in commands)
        assert len(commands) <= most * seconds + OF_A_PASS * (passes + 1), commands
        assert any(command.startswith("BLMOVE") for command in commands), "it has listened"


def test_a_job_wakes_one_of_many_consumers(fresh_server):
    own = fresh_server()
    client = own.client()
    with ExitStack() as stack:
        inboxes = [stack.enter_context(Inbox(own.url())) for _ in range(CONSUMERS)]
        lists = len(inboxes[0].channel.lists.names)

        def turn(done: Callable[[], bool]) -> bool:
            for inbox in inboxes:
                inbox.turn(0.01)
            return done()

        eventually(
            lambda: turn(lambda: client.info("clients")["blocked_clients"] == CONSUMERS * lists)
        )
        before = looked(client)
        publish(own.url(), "mail", "job")
        eventually(lambda: turn(lambda: sum(len(inbox.messages) for inbox in inboxes) == 1))
        for _ in range(5):
            turn(lambda: True)
        assert looked(client) - before <= lists, "one claim, which names the job"
