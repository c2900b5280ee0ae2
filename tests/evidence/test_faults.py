"""Each fault at each point of the connections of one process: no job is lost, and none runs twice
without a reason. Longer, with the number of runs that fail without each mechanism:
`python -m evidence faults`; other walks: `pytest tests/evidence/test_faults.py --seed=7`.
"""

from __future__ import annotations

import importlib.util
import logging
import random
import sys
from collections.abc import Iterator

import pytest
import redis

from model.faults import SCENES, failures_of, report_mutants, scene, walk
from support.fault_mutants import BROKEN, MUTANTS, Mutant
from support.servers.faulty import Fault, Faults

WALKS_PER_RUN = 100

pytestmark = pytest.mark.timeout(900)  # a scene takes seconds, and minutes on a busy machine


@pytest.fixture
def faults(client: redis.Redis) -> Iterator[Faults]:
    logging.disable(logging.CRITICAL)  # each fault is logged, and each run has one
    yield Faults(client)
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("title", SCENES)
def test_a_scene_survives_each_fault_at_each_point(client, faults, title):
    outcome = scene(client, faults, title)
    assert not outcome.failures, "\n".join(outcome.failures)
    assert outcome.hits.keys() == set(Fault)


@pytest.mark.parametrize("part", range(4))
def test_random_walks_survive_their_faults(request, client, faults, part, run):
    seed = request.config.getoption("--seed")
    first = random.randrange(2**32) if seed is None else seed + WALKS_PER_RUN * (4 * run + part)
    print(f"--seed={first}")
    for number in range(first, first + WALKS_PER_RUN):
        assert not (failures := walk(client, faults, number).failures), failures


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_the_control_finds_what_a_missing_mechanism_does(client, faults, mutant):
    assert failures_of(client, faults, mutant, mutant.scenes, until_caught=True).is_caught


def test_a_mutant_with_which_no_scene_can_be_played_is_not_caught(client, faults, capsys):
    assert not report_mutants(client, faults, [BROKEN], all_scenes=True)
    assert f"nothing was tried: {BROKEN.what}" in capsys.readouterr().out


def test_a_mutant_fits_the_imported_code_although_its_file_changes_afterwards(
    tmp_path, monkeypatch
):
    file = tmp_path / "greetings.py"
    file.write_text("class Greeting:\n    def text(self):\n        return 'hello'\n")
    spec = importlib.util.spec_from_file_location("greetings", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "greetings", module)
    spec.loader.exec_module(module)
    mutant = Mutant("another", module.Greeting, "text", "'hello'", "'good day'")
    assert mutant.changed(None) == "good day"
    file.write_text("class Greeting:\n    def text(self):\n        return self.other('hello')\n")
    with mutant.in_force():
        assert module.Greeting().text() == "good day"
    assert module.Greeting().text() == "hello"
