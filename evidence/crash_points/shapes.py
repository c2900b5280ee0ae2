"""Define the workflows that are tried (*shapes*), the harms, and the one outcome that is allowed.
Written before the first run.

In each shape one job is the target: only this job is harmed, in workers of its own. All other jobs
run in a worker without harms. So a step that runs twice there was published twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery import Celery, chain, chord, group

#: The queue whose workers are harmed, and the one whose worker is not.
TARGET, REST = "target", "rest"

#: Celery's states of a job that has ended.
ENDED = ("SUCCESS", "FAILURE")


@dataclass(frozen=True)
class Shape:
    """A workflow, and the only outcome that is allowed after one harm of any kind to its target.

    The target runs once or twice and ends; each step runs once; no key and no message is left.
    """

    #: Builds the workflow. Its argument is a function that makes a signature, by the job's name.
    build: Callable[[Callable[..., Any]], Any]
    #: All other jobs, and the retry of the target: each is published once, and runs once.
    steps: tuple[str, ...] = ()
    #: Job that collects values -> the values that it has to get, each once.
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: The state of the target at the end.
    state: str = "SUCCESS"


#: The kinds of harm; and their moments: before a command, which is not forwarded then, or after it,
#: when its reply is withheld.
HARMS = ("child", "worker", "connection")
MOMENTS = ("before", "after")
POOLS = ("prefork", "threads", "gevent", "solo")

PARTS = ("part-1", "part-2")
ALL_PARTS = ("part-1", "part-2", "target")


def _chord(make: Callable[..., Any], **gates: str) -> Any:
    """Build a chord of three parts, one of which is the target, and a body.

    Arguments:
        make: makes a signature, by the job's name.
        gates: the gate for which the ``target`` waits, and that for which the ``others`` wait.
    """
    others = [make(name, gate=gates.get("others")) for name in PARTS]
    return chord([make("target", gate=gates.get("target")), *others], make("body"))


SHAPES = {
    "plain": Shape(lambda make: make("target")),
    "retry": Shape(lambda make: make("target", act="retry"), steps=("target-again",)),
    "chain link": Shape(
        lambda make: chain(make("target"), make("next"), make("last")), steps=("next", "last")
    ),
    "last link": Shape(lambda make: chain(make("first"), make("target")), steps=("first",)),
    # The other parts run when the target is settled, after its second run if there is one.
    "chord part": Shape(
        lambda make: _chord(make, others="settled"),
        steps=(*PARTS, "body"),
        values={"body": ALL_PARTS},
    ),
    # The other parts run while the target waits to be recovered.
    "overtaken part": Shape(
        lambda make: _chord(make, others="harmed"),
        steps=(*PARTS, "body"),
        values={"body": ALL_PARTS},
    ),
    # The target begins when the other parts are settled.
    "completing part": Shape(
        lambda make: _chord(make, target="alone"),
        steps=(*PARTS, "body"),
        values={"body": ALL_PARTS},
    ),
    "fan-in body": Shape(
        lambda make: chord([make(name) for name in PARTS], make("target")),
        steps=PARTS,
        values={"target": PARTS},
    ),
    "errback": Shape(
        lambda make: make("target", act="fail").on_error(make("errback", task="errback")),
        steps=("errback",),
        state="FAILURE",
    ),
    "group in chord": Shape(
        lambda make: chord(
            [group(make("part-1"), make("target", gate="alone")), make("part-2")], make("body")
        ),
        steps=(*PARTS, "body"),
        values={"body": ALL_PARTS},
    ),
    "chord in chain": Shape(
        lambda make: chain(
            make("target"), group(make(name) for name in PARTS), make("body"), make("last")
        ),
        steps=(*PARTS, "body", "last"),
        values={"body": PARTS},
    ),
}

#: Patterns of keys that may not be left when a workflow has ended: claims, messages that landed or
#: wait, job histories, and the counts of a chord. (Owner records stay, and so do results.)
LEFT = (
    r"superfetch:(private|landing|probation|parked|history):",
    r"celery-taskset-meta-.*\.",
    r"unacked",
)
#: Those of these keys that may stay if they expire: Celery's own, of a chord.
STAYS = r"celery-taskset-meta-"


def workflow(app: Celery, shape: str, point: str) -> Any:
    """Return the workflow of a shape, to be sent. Each task id is the point and the job's name."""

    def make(name: str, *, task: str = "job", **kwargs: Any) -> Any:
        return app.signature(
            f"evidence.{task}",
            kwargs={"point": point, "name": name, **kwargs},
            options={"queue": TARGET if name == "target" else REST, "task_id": f"{point}-{name}"},
        )

    return SHAPES[shape].build(make)
