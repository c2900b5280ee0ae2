"""Processes that fork, execute themselves anew, or hold several apps: real ones throughout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
import pytest
from redis.connection import parse_url

from celery_superfetch.owner.process_owners import owner_for, owners_of_process
from celery_superfetch.reaper.evidence import Onlooker
from celery_superfetch.worker.stopping import Stopper, is_stopping
from support.driver import Executor
from support.hosts import Host
from support.process import Process
from support.waiting import always, eventually
from support.workers.bench import Bench, payload
from support.workers.worker import process_env


class Program(Process):
    """`-m support.apps.forks <argv>`; its JSON lines by who wrote them. A fifo is its stdin."""

    def __init__(self, url: str, directory: Path, *argv: str, host: Host | None = None) -> None:
        self.fifo = directory / "stdin"
        os.mkfifo(self.fifo)
        command = f'exec "$@" < "{self.fifo}"'
        super().__init__(
            ["sh", "-c", command, "sh", sys.executable, "-m", "support.apps.forks", *argv],
            log=directory / "program.log",
            env=process_env({"URL": url}),
            title=" ".join(argv),
            host=host,
        )
        self._stdin = os.open(self.fifo, os.O_RDWR)

    def go_on(self) -> None:
        os.write(self._stdin, b"\n")

    def said(self) -> dict[str, dict[str, Any]]:
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return {line.pop("who"): line for line in lines}

    def wait_said(self, who: str) -> dict[str, Any]:
        eventually(lambda: who in self.said() or not self.alive(), 30, message=f"{who} has spoken")
        assert who in self.said(), self.tail()
        return self.said()[who]

    def close(self) -> None:
        super().close()
        os.close(self._stdin)


@pytest.fixture
def program(url: str, keep: Callable[[Any], Any], tmp_path: Path) -> Callable[..., Program]:
    return lambda *argv, host=None: keep(Program(url, tmp_path, *argv, host=host))


def nothing_left(bench: Bench) -> bool:
    kinds = ("superfetch:owner", "superfetch:private", "superfetch:host", "superfetch:landing")
    left = {name for name in bench.key_names() if name.startswith(kinds)}
    # A program that exits while its blocking read waits leaves a tombstone and its owner record, by
    # which a reaper finds a job that lands late.
    left -= {f"superfetch:owner:{owner}" for owner in bench.registry.tombstones()}
    assert left == set()
    return True


@pytest.mark.parametrize("how", ["fork", "os.fork", "spawn"])
def test_a_child_is_an_owner_of_its_own_and_leaves_its_parents_jobs_alone(program, bench, how):
    """`fork` is multiprocessing's: kombu then closes inherited pools in the child, unasked."""
    bench.push("mail", *(payload(n) for n in range(5)))
    process = program("consume_then_fork", how)
    process.wait_said("parent forked")
    [owner] = bench.registry.owners()
    assert len(bench.private(owner)) == 3, "the child neither gave back nor acked"
    process.go_on()
    bench.push("mail", payload(5))
    parent, child = process.wait_said("parent"), process.wait_said("child")
    assert process.wait_exit() == 0
    assert sorted([*parent["ran"], *child["ran"]]) == list("012345"), "each once"
    assert child["ran"] == ["3"]
    assert len({parent["owner"], child["owner"]}) == 2
    assert parent["owner"] == parent["still"] == owner
    # kombu's pool has closed it in a child of multiprocessing, where it connects anew.
    expected = {"fork": "TimeoutError", "os.fork": "ForkedConnection", "spawn": ""}
    assert child["error"] == expected[how]
    assert len(bench.queue("answers")) == 1
    assert nothing_left(bench)


def test_a_child_that_took_itself_for_its_parent_would_double_its_jobs(program, bench):
    """The control: with the guards out of the way, closing gives back what the parent runs."""
    bench.push("mail", *(payload(n) for n in range(5)))
    process = program("consume_then_fork", "unguarded")
    process.wait_said("parent forked")
    assert len(bench.queue()) == 5, "the three that its parent works on among them"


def test_a_pre_fork_server_publishes_and_is_nobodys_owner(program, bench, db):
    process = program("serve")
    assert process.wait_exit() == 0
    said = process.said()
    assert set(said) == {"master", "worker0", "worker1", "worker2", "master again"}
    assert {tuple(line["threads"]) for line in said.values()} == {("MainThread",)}
    names = {(who, n) for who in said for n in range(5)}
    assert sorted(db.waiting()) == sorted(f"{who}-{n}" for who, n in names)
    assert not [name for name in bench.key_names() if "superfetch" in name]


def test_a_process_that_executes_itself_anew_takes_over_from_itself(program, bench):
    """Same pid, same start time: only the newer registration tells that the older is over."""
    bench.push("mail", *(payload(n) for n in range(4)))
    process = program("execute_anew")
    second = process.wait_said("second")
    first = process.said()["first"]
    assert first["pid"] == second["pid"]
    assert first["ran"] == ["0", "1"]
    assert second["dead"] == {first["owner"]: "its process re-executed itself and registered again"}
    assert second["ran"][0] == "2", "claimed before the pass"
    assert sorted(second["ran"]) == list("0123"), "recovered, each once"
    assert process.wait_exit() == 0


def test_two_apps_with_different_brokers_in_one_process(make_app, url, bench, fresh_server):
    other_server = fresh_server()
    other = Bench(other_server.client())
    apps = [make_app(), make_app(url=other_server.url()), make_app(superfetch=False)]
    for app, name in zip(apps, ("one", "two", "three"), strict=True):
        app.send_task("shop.note", (name,), queue=f"q-{name}")
    seen: list[kombu.Message] = []
    connections = [app.connection_for_read() for app in apps[:2]]
    for connection, queue in zip(connections, ("q-one", "q-two"), strict=True):
        kombu.Consumer(connection, [kombu.Queue(queue)], on_message=seen.append).consume()
        connection.drain_events(timeout=5)
    [[mine], [others]] = [list(b.registry.owners()) for b in (bench, other)]
    assert mine != others
    assert len(bench.private(mine, "q-one")) == len(other.private(others, "q-two")) == 1
    assert len(bench.queue("q-three")) == 1, "the stock app's"
    assert type(apps[2].connection_for_read().transport).__module__ == "kombu.transport.redis"
    seen[0].ack()
    eventually(lambda: not bench.private(mine, "q-one"))
    assert other.private(others, "q-two"), "the other's is still in flight"
    seen[1].ack()
    for connection in connections:
        connection.close()
    assert nothing_left(bench)
    assert nothing_left(other)


def test_a_second_embedded_worker_runs_jobs_while_the_first_ends(program):
    """C9. The first's pool is still at a job, so its owner stays, and is stopping. As with stock,
    the next worker of the process has nothing to do with that, and no thread is left."""
    process = program("embed")
    assert process.wait_said("second")["ran"]
    assert process.wait_said("end")["threads"] == []
    assert process.wait_exit() == 0


def test_an_embedded_worker_that_has_ended_settles_what_the_server_refused(
    fresh_server, keep, tmp_path
):
    """The ack of its last job was refused, and no thread sent it again: the job, and the owner with
    its heartbeats, stayed until the process ended."""
    process = keep(Program(fresh_server().url(), tmp_path, "embed_refused"))
    assert process.wait_said("refused")["private"] == 1
    said = process.wait_said("end")
    assert (said["private"], said["owners"]) == (0, 0)
    assert process.wait_exit() == 0


def test_a_worker_that_is_told_to_stop_does_not_speak_for_its_neighbours(url, make_bench):
    """F3. Two workers in one process, of the same app or of another, and a plain consumer."""
    params, config = parse_url(url), make_bench().config
    first, second, runners = object(), object(), (Executor(), Executor(), Executor())
    for runner, worker in zip(runners, (first, second, object()), strict=True):
        runner.worker = worker
    one, two = (owner_for(params, config, executor=runner) for runner in runners[:2])
    plain = owner_for(params, config)
    Stopper(first).mark_stopping()
    assert [is_stopping(each) for each in (one, two, plain)] == [True, False, False]
    # The next worker makes room: of one that was told, and has left, nothing is kept.
    owner_for(params, config, executor=runners[2])
    assert one not in owners_of_process()
    assert {two, plain} <= set(owners_of_process())


@pytest.mark.netns
def test_two_apps_of_one_process_are_judged_by_their_own_settings(program, make_bench):
    """Frozen together, and looked at from another host whose settings are different again."""
    judge = make_bench(heartbeat_interval=0.3, owner_ttl=20)
    judge.push("mail", payload("h"), payload("p"))
    process = program("two_settings", host=Host("elsewhere"))
    hasty, patient = (process.wait_said(who)["owner"] for who in ("hasty", "patient"))
    assert hasty != patient
    assert set(judge.registry.owners()) == {hasty, patient}
    onlooker = Onlooker(judge.registry)
    reaper = judge.reaper(staleness=onlooker.staleness)

    def dead() -> set[str]:
        onlooker.judge_owners()
        return {*reaper.reap().dead}

    with process.frozen():
        eventually(lambda: hasty in dead(), 15, 0.1)
        assert judge.queue() == [payload("h")]
        always(lambda: not dead(), 1.5)
        assert judge.private(patient) == [payload("p")], "its owner_ttl is ten minutes"
