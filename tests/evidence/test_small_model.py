"""The small world of `python -m evidence model`, up to a number of states: a complete search takes
minutes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_superfetch.model.config import Config
from celery_superfetch.model.job import Claimed, Counters, Job
from celery_superfetch.reaper.reaper import Reaper
from celery_superfetch.store.database import Database
from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.scripts import Scripts
from evidence.model import WORLDS, Setting, Worlds
from evidence.small.calls import job_of
from evidence.small.contents import JOBS, QUEUE
from evidence.small.mutants import MUTANTS
from evidence.small.processes import SEND_ORDER, Event, Harm, ModelError, State, Step
from evidence.small.search import search
from evidence.small.state import IDLE, ModelLease, WorldState
from evidence.small.world import World
from support.driver import Driver
from support.servers.server import Server
from support.workers.bench import Bench

# The number of states limits each search to about 10 s of computing. On a busy machine that can
# take more than the 120 s of every other test.
pytestmark = pytest.mark.timeout(600)

#: Settings that fewer than 20,000 states exhaust.
SMALL = [
    "two innocent jobs, no harm",
    "an innocent job and a pill",
    "two innocent jobs, a channel is closed or a worker stops",
    "two plain consumers, a channel is closed",
]

#: Mutants with short traces.
EASY = [
    "mark.lua: it marks an owner that has sent a heartbeat since the verdict",
    "an owner is declared dead before its start permit has ended",
    "return_landed.lua: the job does not arrive",
    "a job is acked before it runs",
    "probation.lua: a suspect gets a waiting note",
    "step.lua: a step that is in the steps note is published again",
]
EASY += [one.what for one in MUTANTS if one.rows]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with Server(unixsocket=True) as server:
        path = server.options["unixsocket"]
        yield Worlds(redis.Redis(unix_socket_path=path, socket_timeout=None))


@pytest.mark.parametrize("setting", WORLDS, ids=lambda setting: setting.what)
def test_no_state_breaks_an_invariant(worlds, setting):
    result = search(worlds.of(setting), setting.harms, most=20_000)
    assert not result.violation, result.trace
    assert result.complete == (setting.what in SMALL)


@pytest.mark.parametrize(
    "mutant", [one for one in MUTANTS if one.what in EASY], ids=lambda mutant: mutant.what
)
def test_a_removed_safety_is_detected(worlds, mutant):
    result = worlds.search_without(mutant, most=20_000)
    assert result.violation
    assert result.trace


# -- the model follows the package


class RecordingScripts(Scripts):
    """Records, in their order, the scripts by which a reaper changes something."""

    def __init__(self, client: redis.Redis, never: str) -> None:
        super().__init__(client, never)
        self.names: list[str] = []

    def run_all(self, calls: list[Call], *, errors: bool = False) -> list[object]:
        recorded = "mark", "return_landed", "recover"
        self.names += [call.name for call in calls if call.name in recorded]
        return super().run_all(calls, errors=errors)


def test_the_reaper_of_the_model_runs_the_scripts_of_the_real_one(client, worlds):
    bench = Bench(client)
    bench.dead_owner([JOBS["A"]], QUEUE, [JOBS["A"]])
    bench.reaper().reap()  # each script runs twice on a server that does not know it yet
    client.flushdb()

    database = Database(client, Config(app_name="shop"))
    recording = database.__dict__["scripts"] = RecordingScripts(client, database.keys.never)
    bench.dead_owner([JOBS["A"]], QUEUE, [JOBS["A"]])
    assert Reaper(database).reap().recovered == 1
    real = list(recording.names)

    one_harm = next(setting for setting in WORLDS if setting.harms == 1 and not setting.plain)
    world = Worlds(client).of(one_harm)
    state = world.first(1)
    for what in ("p0 registers", "p0 claims A and records its start"):
        state = _after(world, state, what)
    state = world.end_process(state, 0)
    [first] = world.reaper_steps(state)
    state, before = first.state, len(world.spaces.scripts_run)
    while state.reaper != IDLE:
        state = next(world.reaper_steps(state)).state
    assert world.spaces.scripts_run[before:] == real


def _after(world: World, state: WorldState, what: str) -> WorldState:
    world.processes_are_alike = False
    steps: list[Step] = [step for step in world.steps(state) if step.what == what]
    return steps[0].state


#: The script of each command of the model; ``HDEL`` is no script.
SCRIPTS = {"requeue": "requeue", "park": "park", "put note back": "wait", "": ""}
SCRIPTS |= {"ack": "HDEL", "record start": "HDEL"}
STATES = [
    "FETCHED",
    "DELIVERED",
    "RESERVED",
    "RUNNING",
    "DETACHED",
    "RETURNING",
    "PARKING",
    "SETTLED",
]


def _lease(state: str, has_waiting_note: bool | None = True) -> ModelLease:
    return ModelLease("p0|1|0", f"1:{QUEUE}", "A", State[state], has_waiting_note, is_pending=True)


def _job(number: int = 1) -> Job:
    return job_of("p0|1|0", f"{number}:{QUEUE}", "A")


@pytest.mark.parametrize("note", [True, False, None])
@pytest.mark.parametrize("state", STATES)
def test_the_model_sends_what_the_package_sends(client, state, note):
    sent = Bench(client).driver.commands([_job()], [state], note) or [""]
    assert [SCRIPTS[_lease(state, note).command]] == sent


def test_the_model_sends_in_the_order_of_the_package(client):
    states = ["SETTLED", "RESERVED", "PARKING", "RETURNING"]
    sent = Bench(client).driver.commands(map(_job, range(4)), states, None)
    in_order = sorted(states, key=lambda state: SEND_ORDER[_lease(state, None).command])
    assert sent == [SCRIPTS[_lease(state, None).command] for state in in_order]


def test_a_job_with_a_history_is_acked_by_a_script(client):
    assert Bench(client).driver.commands([_job()], ["SETTLED"], False, Counters()) == ["ack"]


def test_an_event_that_the_table_does_not_have_is_an_error_of_the_model(worlds):
    with pytest.raises(ModelError, match="ACK of a lease that is PARKING"):
        worlds.of(WORLDS[0])._apply(_lease("PARKING"), Event.ACK)


def _refuse_to_park(bench: Bench, driver: Driver, job: Job) -> None:
    bench.client.set(bench.keys.parked_of(QUEUE), "no sorted set")
    driver.flush()


CLAIM = "p0 claims A", lambda bench, driver, job: None
CLAIM_TO_START = "p0 claims A and records its start", lambda bench, driver, job: None
DELIVER = (
    "p0 delivers A (RESERVE)",
    lambda bench, driver, job: (driver.reserve(job), driver.deliver(job)),
)
START = (
    "p0 starts A, and records that (START)",
    lambda bench, driver, job: (driver.start(job), driver.flush()),
)
BEGIN = "A begins in p0", lambda bench, driver, job: None
CLOSE = "the channel of p0 is closed (CLOSE)", lambda bench, driver, job: driver.close([job])
WITHDRAW = (
    "the pool of p0 does not begin with A (WITHDRAW)",
    lambda bench, driver, job: driver.withdraw_start(job),
)
NOTE_BACK = "p0 puts the waiting note of A back", lambda bench, driver, job: driver.flush()
SEND_REQUEUE = "p0 requeues A", lambda bench, driver, job: driver.flush()
PARK = "p0 is to park A (PARK)", lambda bench, driver, job: driver.postpone(job, 60)

#: Steps of the model, each with what the package's process does. None: the next one does both.
TRACES = {
    "a run": [
        CLAIM,
        DELIVER,
        START,
        BEGIN,
        ("A ends in p0", lambda bench, driver, job: driver.finish(Claimed(job, None))),
        ("p0 acks A", lambda bench, driver, job: driver.flush()),
    ],
    "a start that comes late": [CLAIM_TO_START, DELIVER, NOTE_BACK, START],
    "a start with the claim": [
        CLAIM_TO_START,
        DELIVER,
        ("p0 starts A (START)", lambda bench, driver, job: driver.start(job)),
        WITHDRAW,
        NOTE_BACK,
    ],
    "a requeue": [
        CLAIM,
        DELIVER,
        ("p0 requeues A", lambda bench, driver, job: driver.requeue([job])),
    ],
    "a closed channel, before the start": [
        CLAIM,
        DELIVER,
        (CLOSE[0], None),
        ("p0 requeues A", CLOSE[1]),
    ],
    "a closed channel, after the start": [CLAIM, DELIVER, START, CLOSE, WITHDRAW, SEND_REQUEUE],
    "a parked job": [CLAIM, PARK, ("p0 parks A", lambda bench, driver, job: driver.flush())],
    "a refused park": [
        CLAIM,
        PARK,
        ("the server refuses to park A for p0 (REFUSE)", _refuse_to_park),
    ],
    "a stop": [
        CLAIM,
        DELIVER,
        START,
        BEGIN,
        ("p0 begins to stop", lambda bench, driver, job: driver.requeue_reserved([job])),
        (
            "the stop of p0 cuts A short (WITHDRAW)",
            lambda bench, driver, job: driver.stop_run(job),
        ),
        ("the pool of p0 has ended; the channel of p0 is closed (CLOSE)", None),
        ("p0 requeues A", CLOSE[1]),
    ],
}


@pytest.mark.parametrize("trace", TRACES)
def test_a_lease_of_the_model_has_the_states_of_the_real_one(client, worlds, trace):
    bench = Bench(client)
    owner, driver = bench.owner(lists=[QUEUE]).owner, bench.driver
    client.rpush(bench.keys.queue(QUEUE), JOBS["A"])
    starts = int(TRACES[trace][0] is CLAIM_TO_START)
    [claimed] = driver.claim(owner, [QUEUE], 1, starts=starts).jobs
    kinds = frozenset({Harm.CLOSE, Harm.REFUSAL, Harm.STOP})
    world = worlds.of(Setting("one job", 1, kinds))
    world.jobs = "A"
    state = _after(world, world.first(1), "p0 registers")
    for what, act in TRACES[trace]:
        state = _after(world, state, what)
        if act is None:
            continue
        act(bench, driver, claimed.job)
        [lease] = state.processes[0].leases or [None]
        assert driver.state(claimed.job) == (lease and lease.state.name), what
        if lease is not None and lease.state.name not in ("RETURNING", "PARKING", "SETTLED"):
            assert driver.has_waiting_note(claimed.job) == lease.has_waiting_note, what
