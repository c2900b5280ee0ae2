"""The small world of `python -m evidence model`, reduced: what is all of it takes minutes."""

from __future__ import annotations

import pytest
import redis

from celery_superfetch.model.config import Config
from celery_superfetch.reaper.reaper import Reaper
from celery_superfetch.store.database import Database
from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.scripts import Scripts
from evidence.model import WORLDS, caught, world
from evidence.small.mutants import MUTANTS
from evidence.small.processes import Step
from evidence.small.search import search
from evidence.small.seen import JOBS, QUEUE
from evidence.small.state import IDLE, State
from evidence.small.world import World
from support.workers.bench import Bench

# Each search ends by its number of states, after 7 s of computing at most. On a busy machine that
# can take more than the 120 s of every other test.
pytestmark = pytest.mark.timeout(600)

#: Whose traces are short.
EASY = [
    "mark: although it was heard meanwhile",
    "the verdict is not built on silence that was watched",
    "return_landed: the job does not arrive",
    "a job is acked before it runs",
    "probation: a note says that it waits",
    "step: again, though it is noted",
]


@pytest.mark.parametrize("sound", WORLDS, ids=lambda sound: sound.what)
def test_no_state_breaks_an_invariant(client, sound):
    made = world(client, pill=sound.pill, hands_on=sound.hands_on)
    made.failover, made.others = sound.failover, sound.others
    result = search(made, sound.harms, most=20_000)
    assert not result.wrong, result.trace
    assert result.complete == (not sound.harms)


@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.what in EASY], ids=lambda mutant: mutant.what
)
def test_what_is_missing_is_found(client, mutant):
    result = caught(client, mutant, most=20_000)
    assert result.wrong
    assert result.trace


class Noted(Scripts):
    """Notes which scripts change something, in their order."""

    def __init__(self, client: redis.Redis, never: str) -> None:
        super().__init__(client, never)
        self.names: list[str] = []

    def run_all(self, calls: list[Call], *, errors: bool = False) -> list[object]:
        followed = "mark", "return_landed", "recover"
        self.names += [call.name for call in calls if call.name in followed]
        return super().run_all(calls, errors=errors)


def test_the_reaper_of_the_model_asks_for_what_the_real_one_does(client):
    bench = Bench(client)
    bench.dead_owner([JOBS["A"]], QUEUE, [JOBS["A"]])
    bench.reaper().reap()  # a server that does not know a script yet is asked twice
    client.flushdb()

    database = Database(client, Config(app_name="shop"))
    noted = database.__dict__["scripts"] = Noted(client, database.keys.never)
    bench.dead_owner([JOBS["A"]], QUEUE, [JOBS["A"]])
    assert Reaper(database).reap().recovered == 1
    real = list(noted.names)

    small = world(client)
    state = small.first(1)
    for what in ("p0 registers", "p0 claims A to start it", "p0 is killed"):
        state = _then(small, state, what)
    [first] = small.reaper_steps(state)
    state, before = first.state, len(small.spaces.asked)
    while state.reaper != IDLE:
        state = next(small.reaper_steps(state)).state
    assert small.spaces.asked[before:] == real


def _then(small: World, state: State, what: str) -> State:
    small.alike = False
    steps: list[Step] = [step for step in small.steps(state) if step.what == what]
    return steps[0].state
