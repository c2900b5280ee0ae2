"""A primary with its replica, and the Sentinels that may promote one of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import redis

from support.servers.server import Option, Server
from support.waiting import eventually

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "shop"

#: ms without a reply after which a Sentinel takes a server for down. Nobody is, on a machine that
#: is merely busy, until a test kills one: then the Sentinels are told to be quick.
PATIENT, QUICK = 60_000, 1_000


class Replicated:
    """A primary and its replica, in step with it; `self.primary` is whoever is primary now."""

    def __init__(self, **options: Option) -> None:
        # No wait for more replicas that want the same snapshot: it costs 5 s at each start.
        options = {"repl_diskless_sync_delay": 0, "repl_ping_replica_period": 1, **options}
        self.servers = [Server(**options) for _ in range(2)]
        self.primary = self.servers[0]

    def start(self) -> Self:
        self.primary.start()
        for replica in self.replicas:
            replica.configure(replicaof=["127.0.0.1", str(self.primary.port)])
            replica.start()
        self.wait_in_step()
        return self

    @property
    def replicas(self) -> list[Server]:
        return [server for server in self.servers if server is not self.primary]

    def url(self, db: int = 0) -> str:
        """A failover list: all servers, the first primary first."""
        return ";".join(server.url(db) for server in self.servers)

    def wait_in_step(self) -> None:
        """Until every living replica has what the primary has now. WAIT on a connection of its own
        waits for nothing: it has written nothing."""
        living = sum(replica.alive() for replica in self.replicas)
        client = self.primary.client()
        goal = client.info("replication")["master_repl_offset"]

        def in_step() -> bool:
            facts = client.info("replication")
            replicas = [facts.get(f"slave{at}") for at in range(facts["connected_slaves"])]
            # One that reads a snapshot may have an offset already, and cannot be handed over to.
            there = [one for one in replicas if one is not None and one["state"] == "online"]
            return sum(replica["offset"] >= goal for replica in there) >= living

        eventually(in_step, 30, message="the replicas are in step")

    def failover(self) -> Server:
        """Planned: the primary hands over to a replica that has everything; the new primary."""
        heir, client = self.replicas[0], self.primary.client()

        def handed_over() -> bool:
            if role(heir) == "master":
                return True
            # It gives up after a time, where the replica has too much to do.
            if client.info("replication")["master_failover_state"] == "no-failover":
                client.execute_command(
                    "FAILOVER", "TO", "127.0.0.1", str(heir.port), "TIMEOUT", "10000"
                )
            return False

        eventually(handed_over, 60, message="the primary has handed over")
        self.primary = heir
        return heir

    def kill_primary(self) -> None:
        """Unplanned: the primary is gone; somebody has to promote a replica."""
        self.primary.kill()

    def freeze_primary(self) -> Server:
        """It stands still, and is heard by nobody; `promote` comes next. The old primary."""
        self.primary.pause()
        return self.primary

    def promote(self) -> Server:
        """What an operator does when the primary is gone; the new primary."""
        heir = next(replica for replica in self.replicas if replica.alive())
        heir.client().execute_command("REPLICAOF", "NO", "ONE")
        return self._wait_for(heir)

    def _wait_for(self, heir: Server) -> Server:
        eventually(lambda: role(heir) == "master", 30, message="the replica is promoted")
        self.primary = heir
        return heir

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class SentinelGroup(Replicated):
    """The same under the eyes of Sentinels, a majority of which decides.

    `sentinel_options` are directives of the Sentinels; `sentinel("auth-pass", "x")` adds a line
    about the group.
    """

    def __init__(
        self,
        about: dict[str, str] | None = None,
        sentinel_options: dict[str, Option] | None = None,
        **options: Option,
    ) -> None:
        super().__init__(**options)
        self.about = {
            "down-after-milliseconds": str(PATIENT),
            "failover-timeout": "5000",
            **(about or {}),
        }
        self.sentinels = [SentinelServer(**(sentinel_options or {})) for _ in range(3)]

    def start(self) -> Self:
        super().start()
        quorum = len(self.sentinels) // 2 + 1
        monitor = f"sentinel monitor {NAME} 127.0.0.1 {self.primary.port} {quorum}"
        lines = [monitor, *(f"sentinel {key} {NAME} {value}" for key, value in self.about.items())]
        for sentinel in self.sentinels:
            sentinel.watch(lines).start()
        eventually(self._all_know_all, 30, message="the Sentinels know each other and the replicas")
        return self

    def _all_know_all(self) -> bool:
        for sentinel in self.sentinels:
            state = sentinel.client().sentinel_masters()[NAME]
            if state["num-other-sentinels"] < len(self.sentinels) - 1:
                return False
            if state["num-slaves"] < len(self.replicas):
                return False
        return True

    def sentinel_url(self, db: int = 0) -> str:
        return ";".join(f"sentinel://127.0.0.1:{one.port}/{db}" for one in self.sentinels)

    def failover(self, *, coordinated: bool = True) -> Server:
        """Planned, by SENTINEL FAILOVER; the new primary.

        Not coordinated, the old primary takes writes for ten seconds more, and loses them.
        """
        command = ["SENTINEL", "FAILOVER", NAME]
        try:
            self.sentinels[0].client().execute_command(*command, *["COORDINATED"] * coordinated)
        except redis.ResponseError:  # Valkey 9 was the first to know the word
            self.primary.client().execute_command("CLIENT", "PAUSE", "30000", "WRITE")
            self.wait_in_step()
            self.sentinels[0].client().execute_command(*command)
        return self.wait_switch()

    def kill_primary(self) -> None:
        super().kill_primary()
        self._be(QUICK)

    def freeze_primary(self) -> Server:
        self._be(QUICK)
        return super().freeze_primary()

    def promote(self) -> Server:
        """Wait for the Sentinels to promote a replica; the new primary."""
        heir = self.wait_switch()
        self._be(PATIENT)
        return heir

    def _be(self, down_after: int) -> None:
        for one in self.sentinels:
            one.client().execute_command(
                "SENTINEL", "SET", NAME, "down-after-milliseconds", down_after
            )

    def wait_switch(self) -> Server:
        """Until every Sentinel names another primary than before, and it is one."""
        before = self.primary

        def switched() -> Server | None:
            named = {int(one.client().sentinel_masters()[NAME]["port"]) for one in self.sentinels}
            found = next(s for s in self.servers if s.port in named)
            return found if len(named) == 1 and found is not before else None

        return self._wait_for(eventually(switched, 60, message="the Sentinels name another"))

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
        super().close()


class SentinelServer(Server):
    """One Sentinel: the same program in another mode, and with a file it may write to."""

    def __init__(self, **options: Option) -> None:
        super().__init__(**options)
        del self.options["save"]
        self._lines: list[str] = []

    def watch(self, lines: list[str]) -> Self:
        self._lines = lines
        return self

    def arguments(self, port: int) -> list[str]:
        config = self.dir / f"sentinel-{port}.conf"
        config.write_text("\n".join(self._lines) + "\n")
        return [str(config), "--sentinel", *super().arguments(port)]


def role(server: Server) -> str:
    """`master` or `slave`, as the server itself says; empty while it cannot be asked."""
    with contextlib.suppress(redis.RedisError):
        return str(server.client().info("replication")["role"])
    return ""
