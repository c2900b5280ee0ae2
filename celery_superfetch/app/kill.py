"""`jobs kill`: jobs in flight go to the dead set, and their worker stops with them."""

from __future__ import annotations

from collections.abc import Sequence

from celery import Celery
from redis.exceptions import RedisError

from ..model.dead_job import DeadJob
from ..model.facts import Facts
from ..model.strikes import Decision, Running
from ..owner.in_flight.lost_runs import DECISIONS
from ..reaper.reaper import Reaper

COMMAND = "superfetch_killed"  # the control command by which a worker stops with jobs
TIMEOUT = 5.0  # seconds that a worker has for its answer

BY_AN_OPERATOR = "killed by an operator"
GONE = "its worker does not have it any more: it has ended, or went back to its queue"
SILENT = (
    "its worker {node} did not answer within {seconds:g} s: its loop is busy (a solo worker's with "
    "each job), its remote control is off, or it cannot be reached"
)
OTHER = (
    "its worker {node} runs {version} of celery_superfetch, which does not know how to stop with "
    "it: restart it with this one"
)
UNANSWERED = (
    "the server did not answer ({}), and may have done it all the same: see `jobs` and `dead list`"
)
RUNS_ON = "it is in the dead set as {}, but may run all the same, to no effect on it: {}"


def kill(
    app: Celery, reaper: Reaper, facts: Facts, called: int, claims: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Move jobs of one worker to the dead set, by their claim ids; what runs is ended. ``called``:
    how many workers have its name. Returns claim id -> ``dead_id``, if it is there, and ``error``,
    if something was left undone."""
    # A worker that would not hear of it would begin with them all the same.
    answers = _stop(app, facts, called, claims)
    results = {name: {"error": why} for name, why in answers.items() if why}
    for name in claims:
        if name in results:
            continue
        try:
            dead = _move(reaper, facts, name)
        except RedisError as exc:
            results[name] = {"error": UNANSWERED.format(exc)}
        else:
            results[name] = {"dead_id": dead.id} if dead else {"error": GONE}
    if moved := [name for name, why in answers.items() if not why]:
        for name, why in _stop(app, facts, called, moved).items():
            if why not in ("", GONE) and (dead_id := results[name].get("dead_id")):
                results[name]["error"] = RUNS_ON.format(dead_id, why)
    return results


def _stop(app: Celery, facts: Facts, called: int, names: Sequence[str]) -> dict[str, str]:
    """Have a worker stop with those that are in the dead set by now: claim id -> why it cannot
    stop with that one; empty where it can, or has."""
    node = facts.node
    replies = app.control.broadcast(
        COMMAND,
        arguments={"owner": facts.owner, "jobs": [*names]},
        destination=[node],
        reply=True,
        timeout=TIMEOUT,
        limit=called,  # each of them answers, and one alone has the jobs
    )
    answers = [reply[node] for reply in replies or () if node in reply]
    answers.sort(key=lambda answer: "jobs" not in answer)
    if not answers:
        why = SILENT.format(node=node, seconds=TIMEOUT)
    elif "jobs" in answers[0]:
        return dict(answers[0]["jobs"])
    else:
        why = str(answers[0].get("error"))
        if COMMAND in why:  # "no such key"
            why = OTHER.format(node=node, version=facts.version or "an earlier version")
    return dict.fromkeys(names, why)


def _move(reaper: Reaper, facts: Facts, claim: str) -> DeadJob | None:
    """Move one job, if its worker still has it."""
    jobs, _ = reaper.lists.jobs(facts.owner, [claim], 0)
    told = {"reason": BY_AN_OPERATOR, "app_name": facts.app, "node": facts.node}
    for _ in range(DECISIONS if jobs else 0):
        [recovery] = reaper.judge.look(jobs, Running(), reaper.limits, **told)
        [done] = reaper.judge.carry_out(
            [(recovery, Decision.KILL)], 0, marked=False, notice=reaper.notice
        )
        if isinstance(done.answer, Exception):
            raise done.answer
        if done.answer == b"ok":
            return DeadJob.of(recovery, done.dead_id.decode())
    return None
