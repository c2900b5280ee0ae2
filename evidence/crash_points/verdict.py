"""Judge the history of each crash point. Reads the lines only: no server, no app, and no code of
the package.

`report.py` calls it, after a run or for `--judge`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .shapes import ENDED, SHAPES, Shape

Line = dict[str, Any]


def by_point(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Return the lines of each point, by its name."""
    points: dict[str, list[Line]] = {}
    for line in lines:
        if "point" in line:
            points.setdefault(line["point"], []).append(line)
    return points


def trouble(lines: list[Line]) -> list[str]:
    """Return what happened in one point that its shape does not allow; the kind of each trouble is
    before its colon."""
    shape = SHAPES[lines[0]["shape"]]
    starts = [line for line in lines if line["event"] == "start"]
    runs = [line["name"] for line in starts]
    ends = {line["name"] for line in lines if line["event"] == "end"}
    rest = next((line for line in lines if line["event"] == "rest"), None)
    if rest is None:
        return ["unfinished: the history breaks off"]
    found = []
    target = runs.count("target")
    if not target:
        found.append("lost: the target never ran")
    elif target > 2:
        found.append(f"ran too often: the target, {target} times")
    last = "target" if "target-again" not in shape.steps else "target-again"
    if last not in ends:
        found.append(f"lost: {last} never came to its end")
    failed = _failed_honestly(lines[0], rest)
    for step in shape.steps:
        if not (times := runs.count(step)) and step not in failed:
            found.append(f"hung: {step} never ran")
        elif times > 1:
            found.append(f"forked: {step} ran {times} times")
    found += [f"stranger: {name} ran" for name in {*runs} - {"target", *shape.steps}]
    found += _values(shape, starts)
    for job, state in rest["states"].items():
        wanted = shape.state if job == "target" else "SUCCESS"
        if state not in ENDED:
            found.append(f"pending: {job} is {state}")
        elif state != wanted and job not in failed:
            found.append(f"wrong end: {job} is {state} {rest['errors'].get(job, '')}")
    if rest["left"]:
        found.append(f"left: {', '.join(rest['left'])}")
    if rest["waits"]:
        found.append(f"unsettled: {', '.join(rest['waits'])}")
    return found


def _failed_honestly(send: Line, rest: Line) -> set[str]:
    """Return the jobs that failed with the error of a cut connection. Celery fails a job whose
    result it cannot store or read, with any broker. No process has died then, so none of this is a
    job to recover."""
    if send["kind"] != "connection":
        return set()
    return {job for job, error in rest["errors"].items() if "ConnectionError" in error}


def _values(shape: Shape, starts: list[Line]) -> list[str]:
    """Return the troubles of jobs that were called with other values than the shape says."""
    found = []
    for name, wanted in shape.values.items():
        for line in starts:
            if line["name"] == name and sorted(_flat(line["given"])) != sorted(wanted):
                found.append(f"wrong set: {name} was called with {line['given']}")
    return found


def _flat(given: Any) -> list[str]:
    if isinstance(given, list):
        return [value for part in given for value in _flat(part)]
    return [str(given)]
