"""Change each line of the Lua scripts and each branch of the rules, one at a time, and run the
tests until one fails. A change with which all tests pass is a *survivor*: nothing tests that line.

`python -m evidence mutation` runs it, on one core. It changes files in a copy of the checkout only.
Each survivor is printed; evidence/results/mutation.md has the score. If the program is killed, the
copy is left in the temporary directory; with `--results`, the next run continues after the last
change that was tried.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic

import redis

from evidence import ROOT
from evidence.mutants import in_lua, in_python
from evidence.reach import Reached, running, within
from evidence.warm import LIMIT, Warm
from support.servers.server import Server

KILLERS = 30  # tests, at most, that found an earlier change of the same file: they run first

#: Seconds of tests for one changed line of Python: of the shortest tests that run the line, and, if
#: all of these pass, of the next ones. The first find most changes.
MOST_S, REST_S = 45.0, 180.0

#: Folders of tests, from the nearest to the changed files to the widest.
STORE, PACKAGE = "tests/integration/store", "celery_superfetch"
WIDER = ["tests/integration/reaper", "tests/integration/owner", "tests/integration/app"]
WIDER += ["tests/integration/transport"]
#: Tests that find most changes of the leases, within a second.
SCENES = "tests/evidence/test_faults.py::test_a_scene_survives_each_fault_at_each_point"
STEPS = ["tests/integration/app/test_steps.py", "tests/integration/app/test_steps_of_tasks.py"]
HANDING_ON = [
    f"tests/evidence/test_{name}.py" for name in ("handed_on", "steps", "streams", "chords", "seen")
]
#: Tests of the gate that need whole workers: greenlets, too few threads, and broken requests.
WORKERS = [
    f"tests/evidence/test_{name}"
    for name in (
        "worker_at_fault.py::test_a_worker_short_of_threads_ends_and_its_jobs_wait",
        "worker_at_fault.py::test_a_request_class_that_fails_ends_its_worker_and_its_jobs_wait",
        "worker_at_fault.py::test_it_ends_as_well_where_a_timer_would_swallow_that",
        "parked.py::test_each_pool_starts_them_in_their_second",
        "parked.py::test_a_greenlet_that_keeps_the_loop_lets_none_start_early",
        "reception.py::test_what_breaks_at_reception_is_put_aside",
        "frozen.py::test_a_thawed_worker_drops_what_it_had_not_started",
        "pools_slots.py",
    )
]
SCRIPTS = f"{PACKAGE}/store/lua"
FIRST = "claim ack step requeue recover kill mark heartbeat return_landed park release probation"
FIRST += " shared"
REST = "wait leave retry delete trim quiesce lock counters payloads in_flight_counts pages oldest"
REST += " lost"
#: Test file of the store -> the scripts for which it runs before all other tests of the store.
NEAREST = {
    "private_lists": "claim ack requeue return_landed probation payloads",
    "recoveries": "recover counters",
    "suspects": "probation recover",
    "dead_set": "kill retry delete shared",
    "registry": "mark heartbeat leave",
    "script_errors": "park release",
    "dead_caps": "trim",
}


def _of(name: str) -> list[list[str]]:
    """Return the tests of a script, in the order in which they run."""
    nearest = [
        f"{STORE}/test_{tests}.py" for tests, names in NEAREST.items() if name in names.split()
    ]
    return [*([nearest] if nearest else []), [STORE], WIDER]


LISTS = "private_lists claim_ids suspects recoveries leftovers foreign_keys seen stats"
LEASES = "lease lost_claims in_flight pending settlement suspect_claims parking lost_jobs"
LEASES += " lost_ownership executor"
#: The tests that use the leases as a worker does, in one process.
USERS = ["tests/integration/transport", "tests/integration/worker"]
#: File -> its tests, which run in one process, so that it can be recorded which lines each test
#: runs. For a changed line only the tests that run it are run, the shortest first.
BY_LINE = {
    **{
        f"{PACKAGE}/owner/in_flight/{name}.py": [
            ["tests/unit/owner", SCENES],
            ["tests/integration/owner"],
            USERS,
        ]
        for name in LEASES.split()
    },
    f"{PACKAGE}/store/redis/pipeline.py": [
        ["tests/unit/store", f"{STORE}/test_pipeline.py", f"{STORE}/test_connections.py"],
        [f"{SCENES}[claim, start, finish]"],
        ["tests/integration/owner"],
    ],
    f"{PACKAGE}/store/private_lists.py": [
        ["tests/unit/store", *(f"{STORE}/test_{name}.py" for name in LISTS.split())],
        ["tests/integration/owner"],
        USERS,
    ],
}

#: File to change -> lists of tests, in the order in which they run. One that fails is enough.
TARGETS = {
    **{f"{SCRIPTS}/{name}.lua": _of(name) for name in FIRST.split()},
    f"{PACKAGE}/model/verdict.py": [["tests/unit/model/test_verdict.py"], WIDER],
    f"{PACKAGE}/model/strikes.py": [["tests/unit/model/test_strikes.py"], [STORE], WIDER],
    **BY_LINE,
    f"{PACKAGE}/model/step.py": [["tests/unit/model/test_step.py"], HANDING_ON],
    f"{PACKAGE}/app/steps.py": [STEPS, HANDING_ON],
    f"{PACKAGE}/app/task_hooks.py": [STEPS, HANDING_ON],
    f"{PACKAGE}/app/sender.py": [STEPS, HANDING_ON],
    f"{PACKAGE}/worker/gate.py": [
        ["tests/unit/worker/test_gate.py", "tests/integration/worker"],
        ["tests/workers", *WORKERS],
    ],
    **{f"{SCRIPTS}/{name}.lua": _of(name) for name in REST.split()},
}


def main(argv: list[str]) -> int:
    """Try all changes, print survivors and score, and return the exit code: 0 if at most one change
    in twenty survives."""
    parser = argparse.ArgumentParser(prog="python -m evidence mutation", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=600, help="minutes after which no further change is tried"
    )
    parser.add_argument("--seed", help="ignored: nothing is random")
    parser.add_argument(
        "--only",
        default="",
        help="change only files whose path ends with one of these, separated by commas",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="file of results: its changes are skipped, new results are appended",
    )
    options = parser.parse_args(argv)
    done = _read(options.results)
    until = monotonic() + options.minutes * 60
    ends = tuple(options.only.split(","))
    with tempfile.TemporaryDirectory(prefix="superfetch-mutation-") as scratch, Server() as server:
        client = server.client()
        copy = Path(scratch) / "checkout"
        left_out = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "benchmarks")
        shutil.copytree(ROOT, copy, ignore=left_out)
        chosen = {path: tests for path, tests in TARGETS.items() if path.endswith(ends)}
        # Tests of scripts are collected once: a script is read when it is called, so a change has
        # an effect after that. Python is imported when tests are collected, so these are not.
        collected = [[STORE, *WIDER]] if any(path.endswith(".lua") for path in chosen) else []
        with Warm(copy, collected) as of_scripts, Warm(copy, []) as of_rules:
            by_line = [path for path in chosen if path in BY_LINE]
            groups = dict.fromkeys(tuple(some) for path in by_line for some in chosen[path])
            reached = {some: of_rules.reach([*some], by_line) for some in groups}
            for path, tests in chosen.items():
                warm = of_scripts if path.endswith(".lua") else of_rules
                fit = [one for some in tests for one in reached.get(tuple(some), ())]
                for result in _tried(copy, path, tests, done, until, client, warm, fit):
                    _note(options.results, result)
                    done[_key(result)] = result
    return _tell(done.values())


def _tried(
    copy: Path,
    path: str,
    tests: list[list[str]],
    done: dict[str, dict],
    until: float,
    client: redis.Redis,
    warm: Warm,
    reached: list[Reached],
) -> Iterator[dict]:
    """Try each change of a file, and yield its result.

    Arguments:
        copy: the copy of the checkout.
        path: the file to change.
        tests: lists of tests, in the order in which they run.
        done: results by key: changes that are not tried again.
        until: when to stop, by the monotonic clock.
        client: compiles changed scripts.
        warm: runs tests.
        reached: the lines that each test runs, for files in ``BY_LINE``.
    """
    source = (copy / path).read_text()  # of the copy: the checkout may change meanwhile
    is_lua, by_line = path.endswith(".lua"), path in BY_LINE
    for some in [] if by_line else tests:
        warm.check(some)
    for change in in_lua(source) if is_lua else in_python(source):
        result = {"file": path, **change.told}
        if _key(result) in done or monotonic() > until:
            continue
        if is_lua and not _compiles(client, change.text):
            continue
        (copy / path).write_text(change.text)
        earlier = _killers(path, done.values())
        if by_line:
            fit = running(reached, path, change.line, change.span)
            rounds = _rounds(fit, earlier)
            result["not_asked"] = len(fit) - sum(len(some) for some, _ in rounds)
        else:
            rounds = [(some, LIMIT) for some in (earlier, *tests)]
        found = (warm.run(some, limit) for some, limit in rounds if some)
        try:
            result["killed"] = next(filter(None, found), "")
        finally:
            (copy / path).write_text(source)
        yield result


def _rounds(tests: list[Reached], earlier: list[str]) -> list[tuple[list[str], float]]:
    """Return up to three rounds of the tests of a line, in order, and the seconds that each may
    take.

    First those of the shortest tests that found other changes, then the other short ones, then the
    longer ones. Tests that do not fit into ``MOST_S`` and ``REST_S`` are not run: a change that
    only they would find counts as a survivor.
    """
    shortest = within(tests, MOST_S)
    longer = within(tests[len(shortest) :], REST_S)
    first = sorted((t for t in shortest if t.test in earlier), key=lambda t: earlier.index(t.test))
    others = [test for test in shortest if test not in first]
    return [
        ([test.test for test in some], 30 + 3 * sum(test.seconds for test in some))
        for some in (first, others, longer)
    ]


def _killers(path: str, results: Iterable[dict]) -> list[str]:
    """Return the tests that found other changes of a file, those that found most first: one of them
    mostly finds the next change as well."""
    found = Counter(r["killed"] for r in results if r["file"] == path and "::" in r["killed"])
    return [test for test, _ in found.most_common(KILLERS)]


def _compiles(client: redis.Redis, text: str) -> bool:
    """Return whether Redis compiles a script."""
    try:
        client.script_load(text)
    except redis.ResponseError:
        return False
    return True


def _key(result: dict) -> str:
    """Return what identifies a change in several runs."""
    return json.dumps([result["file"], result["line"], result["old"], result["new"], result["nth"]])


def _read(path: Path | None) -> dict[str, dict]:
    """Return the results in a file, by key."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    return {_key(result): result for result in map(json.loads, lines)}


def _note(path: Path | None, result: dict) -> None:
    """Print a survivor, and append each result to the file of results."""
    if not result["killed"]:
        print(_said(result), flush=True)
    if path:
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")


def _said(result: dict) -> str:
    """Return the line that is printed for a survivor."""
    new = result["new"].strip() or "(nothing)"
    left = result.get("not_asked")
    more = f"  ({left} longer tests of this line were left out)" if left else ""
    return f"{result['file']}:{result['line']}: {result['old'].strip()}  =>  {new}{more}"


def _tell(results: Iterable[dict]) -> int:
    """Print the number of changes and survivors of each file, and return the exit code."""
    rows = list(results)
    made, lived = Counter(r["file"] for r in rows), [r for r in rows if not r["killed"]]
    left = Counter(r["file"] for r in lived)
    print("\nfile, changes, survivors")
    for path, count in made.items():
        print(f"{path}, {count}, {left[path]}")
    share = 100 * len(lived) / max(1, len(rows))
    print(f"{len(rows)} changes, {len(lived)} survivors ({share:.1f} %)")
    return 0 if share <= 5 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
