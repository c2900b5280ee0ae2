"""What must become of each job: every run of a script is done once more, in plain Python.

The server's replies and data are compared with it. It knows more than the server does: which job
ended its process, who lives although he was taken for dead, and what ran when that was said.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import redis

from celery_superfetch.model.config import Config
from celery_superfetch.model.job import digest, parse
from celery_superfetch.model.strikes import Limits
from celery_superfetch.store.keys import Keys
from celery_superfetch.store.private_lists import STEPS, WAITS


@dataclass
class Card:
    """What is remembered of one payload, and what came of it since that began."""

    strikes: int = 0
    recoveries: int = 0
    #: Which solitude is its next; 0: it is not on probation.
    probation: int = 0
    #: Runs that were cut short because their owner was stopping.
    stops: int = 0
    #: Strikes by the death of an owner, and those of them that it met alongside others.
    deaths: int = 0
    alongside: int = 0
    #: The server has counters, be they zero.
    counted: bool = False
    #: They may outlive the last item: an owner that was taken for dead has settled one that it
    #: claimed before there were any, which a late claim had brought back to it.
    left: bool = False
    #: What lets it run beside others although it is suspect: copies that wait elsewhere, an
    #: operator's rollback, and the end of a solitude.
    chances: int = 0
    #: Recoveries that blamed it.
    blamed: int = 0
    #: Runs that were not given back on purpose: some were cut short by a deploy, the others not.
    runs: int = 0
    deployed: int = 0
    #: What its runs have handed on, for its next claim.
    steps: str = ""
    #: The fencing token of its latest claim that is over.
    token: int = 0


@dataclass(frozen=True)
class Verdict:
    """An owner when it was taken for dead."""

    #: How many jobs it was running.
    ran: int
    stopping: bool


class Known:
    """The model. Jobs are counted by their bytes: two items of the same bytes are copies. Claims
    are known by their ids.

    Arguments:
        killers: payloads of jobs that may end the process that runs them.
    """

    def __init__(self, keys: Keys, config: Config, limits: Limits, killers: Collection[bytes]):
        self.keys, self.config, self.limits, self.killers = keys, config, limits, set(killers)
        self.published: Counter[bytes] = Counter()
        self.settled: Counter[bytes] = Counter()
        self.dead: Counter[bytes] = Counter()
        #: What each of these has handed on.
        self.dead_steps: dict[bytes, list[str]] = defaultdict(list)
        #: Key of a queue or probation list, or of one where jobs land -> what it holds.
        self.lists: dict[str, Counter[bytes]] = defaultdict(Counter)
        self.cards: dict[bytes, Card] = defaultdict(Card)
        #: Owner -> its claims, and those of them that run, as the server has them.
        self.held: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.running: dict[str, set[str]] = defaultdict(set)
        #: The same -> what is noted beside its claims of their steps.
        self.steps: dict[str, dict[str, str]] = defaultdict(dict)
        #: A payload and one of its steps -> how often it was handed on; its latest fencing token.
        self.handed_on: Counter[tuple[bytes, str]] = Counter()
        self.tokens: dict[bytes, int] = {}
        #: Queue lists that are known to have suspects.
        self.on_probation: set[str] = set()
        self.rolled_back = False
        #: Queues that are paused; in this world each has one list.
        self.paused: set[str] = set()
        self.owners: set[str] = set()
        self.stopping: set[str] = set()
        self.reaped: dict[str, Verdict] = {}
        #: Owner -> the job that ended its process.
        self.culprits: dict[str, bytes] = {}
        #: Owner and payload of which one copy has had the strike of that owner's death.
        self.struck: set[tuple[str, bytes]] = set()
        #: Innocents that an owner without a culprit had alone: to the server it was their fault.
        self.unlucky: set[bytes] = set()
        #: What happened, for the statistics of a run.
        self.notable: Counter[str] = Counter()

    # -- what there is

    def limit(self, payload: bytes) -> int | None:
        return self.limits.strikes(parse(payload).task)

    def copies(self, payload: bytes) -> int:
        """Items of these bytes that are neither settled nor dead."""
        return self.published[payload] - self.settled[payload] - self.dead[payload]

    def blame(self, owner: str, id: str, payload: bytes) -> str:
        """How the end of an owner counts against one of its claims."""
        if id not in self.running[owner]:
            return ""
        if self.reaped[owner].stopping:
            return "stop"
        return "exact" if self.reaped[owner].ran == 1 else "suspect"

    # -- what the server has

    def compare(self, client: redis.Redis, queue_lists: Sequence[str]) -> None:
        """All that is known must be there, and nothing else."""
        keys = self.keys
        lists = [keys.queue(name) for name in queue_lists]
        lists += [keys.probation(name) for name in queue_lists]
        lists += [keys.landing(owner, name) for owner in self.held for name in queue_lists]
        with client.pipeline(transaction=False) as pipe:
            for key in lists:
                pipe.lrange(key, 0, -1)
            for name in queue_lists:
                pipe.zrange(keys.parked_of(name), 0, -1)
            for owner in self.held:
                pipe.hgetall(keys.private(owner))
            for payload in self.published:
                pipe.hgetall(keys.history(digest(payload)))
            pipe.smembers(keys.on_probation)
            pipe.hgetall(keys.dead_jobs)
            pipe.hgetall(keys.dead_caps)
            for index in (keys.dead, keys.dead_of(self.config.app_name)):
                pipe.zrange(index, 0, -1)
            replies = iter(pipe.execute())
        found = {key: Counter(next(replies)) for key in lists}
        for name in queue_lists:
            members = [member.partition(b"\n")[2] for member in next(replies)]
            found[keys.parked_of(name)] = Counter(members)
        private = {owner: next(replies) for owner in self.held}
        counters = {payload: _text(next(replies)) for payload in self.published}
        on_probation = {name.decode() for name in next(replies)}
        records, caps, *indexes = replies
        dead = Counter(json.loads(record)["payload"].encode() for record in records.values())

        held = Counter(p for claims in self.held.values() for p in claims.values())
        everywhere = sum((*found.values(), dead, held), Counter()) + self.settled
        assert everywhere == self.published, "each is in one place, or settled"
        assert found == {key: +self.lists[key] for key in found}
        assert dead == +self.dead
        assert all(set(index) == set(records) for index in indexes), "each is under its app's cap"
        assert caps == dict.fromkeys(records, keys.dead_of(self.config.app_name).encode())
        for owner, fields in private.items():
            rows = {id.encode(): payload for id, payload in self.held[owner].items()}
            assert self.running[owner] <= self.held[owner].keys(), "no record outlives its claim"
            waiting = self.held[owner].keys() - self.running[owner]
            rows |= {f"{WAITS}{id}".encode(): b"" for id in waiting}
            assert self.steps[owner].keys() <= self.held[owner].keys(), "nor does a note"
            notes = self.steps[owner].items()
            assert fields == rows | {f"{STEPS}{id}".encode(): text.encode() for id, text in notes}
        suspects = {name for name in queue_lists if found[keys.probation(name)]}
        assert on_probation == self.on_probation >= suspects
        # An operator's rollback leaves the name of a list behind, until the next claim from it.
        assert self.rolled_back or on_probation == suspects
        for payload, row in counters.items():
            card = self.cards[payload]
            assert bool(row) == card.counted
            assert int(row.get("strikes", 0)) == card.strikes
            assert int(row.get("recoveries", 0)) == card.recoveries
            assert int(row.get("solo_runs", 0)) == card.probation
            assert int(row.get("stops", 0)) == card.stops
            assert int(row.get("deaths", 0)) == card.deaths
            assert int(row.get("alongside", 0)) == card.alongside
            assert row.get("steps", "") == card.steps
            assert int(row.get("token", 0)) == card.token
            assert self.copies(payload) or not row or card.left, "they go with the last item"
        for (payload, name), times in self.handed_on.items():
            assert times <= self.published[payload], f"{name} is handed on once"
        assert set(+self.dead) <= self.killers | self.unlucky, "no innocent is killed"


def _text(row: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode(errors="replace") for name, value in row.items()}
