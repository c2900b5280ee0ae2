"""What is tried, and which outcome is allowed: written down before any run.

In each shape one job is the target: it alone is harmed, in workers of its own. All that follows
from it runs in a worker that nobody harms, so what runs twice there was handed on twice.
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
    """A workflow, and the only outcome that is allowed whatever befalls its target once.

    The target runs once or twice and comes to its end; each step runs once; nothing is left.
    """

    #: Makes the workflow of the signatures that it asks for by name.
    build: Callable[[Callable[..., Any]], Any]
    #: What follows from the target, each handed on once. Of a chord, its other parts, too.
    steps: tuple[str, ...] = ()
    #: Whoever collects values -> those of each part once.
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: The target's own state at the end.
    state: str = "SUCCESS"


#: The kinds of harm, and before or after which command: one that is not forwarded any more, or one
#: whose reply is withheld.
HARMS = ("child", "worker", "connection")
MOMENTS = ("before", "after")
POOLS = ("prefork", "threads", "gevent", "solo")

PARTS = ("part-1", "part-2")
ALL_PARTS = ("part-1", "part-2", "target")


def _chord(make: Callable[..., Any], **gates: str) -> Any:
    """Three parts, one of which is the target, and a body. `gates` say who waits for what."""
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

#: Keys that may not be left when a workflow has ended: a claim, what landed or waits, counters, and
#: what a chord is counted by. (What an owner registered of itself stays, and so do results.)
LEFT = (
    r"superfetch:(private|landing|probation|parked|recoveries):",
    r"superfetch:(chord|step)",
    r"celery-taskset-meta-.*\.",
    r"unacked",
)
#: Among these, what may stay until it expires with the results: what Celery keeps of a chord.
STAYS = r"celery-taskset-meta-"


def workflow(app: Celery, shape: str, point: str) -> Any:
    """The signature to send. Each job's id is the point and the job's name."""

    def make(name: str, *, task: str = "job", **kwargs: Any) -> Any:
        return app.signature(
            f"evidence.{task}",
            kwargs={"point": point, "name": name, **kwargs},
            options={"queue": TARGET if name == "target" else REST, "task_id": f"{point}-{name}"},
        )

    return SHAPES[shape].build(make)
