"""The page of one queue: the words of its view, and of the question before a pause or its end.

``page`` calls it in a thread, and changes nothing itself: ``cli.pauses`` has the pause, which is
one command to the server.
"""

from __future__ import annotations

from typing import Any

from ...cli import pauses
from ...errors import BadQueue
from ...inspector import Inspector

PAUSE_TEXT = (
    "This concerns {concern}. Running jobs continue, and no further job of the queue starts, on no "
    "worker, until it is resumed: jobs wait on the queue, in their order. Restarts do not end a "
    "pause."
)
RESUME_TEXT = "This concerns {concern}. Workers claim its jobs again."
NO_QUEUE = (
    "Nothing is known of a queue of this name: no setting or worker names it, and no reap pass has "
    "found jobs on it. Passes look for such queues about once a minute."
)


def question_of(inspector: Inspector, do: str, queue: str) -> dict[str, str]:
    """Return the words of the question before ``pause`` or ``resume``, for its template."""
    text = PAUSE_TEXT if do == "pause" else RESUME_TEXT
    return {
        "title": f"{do.capitalize()} queue {queue}?",
        "text": text.format(concern=pauses.concern(inspector, queue)),
        "button": do.capitalize(),
        "section": "queues",
    }


def carry_out(inspector: Inspector, do: str, queue: str, by: str) -> dict[str, Any]:
    """Pause or resume a queue; return the outcome: what it says, and whether it was done."""
    with inspector.audit.recording(by, f"queue {do}", queue) as entry:
        done = _change(inspector, do, queue, by)
        entry.end(done["text"])
    return done


def _change(inspector: Inspector, do: str, queue: str, by: str) -> dict[str, Any]:
    if do == "resume":
        if inspector.paused.resume(queue) is None:
            return {"text": "The queue was not paused any more.", "is_done": False}
        return {"text": "Resumed: workers claim its jobs again.", "is_done": True}
    try:
        _, is_new = pauses.pause(inspector, queue, by)
    except BadQueue as exc:
        return {"text": f"Not paused: {exc}.", "is_done": False}
    if not is_new:
        return {"text": "The queue was paused already.", "is_done": False}
    return {"text": "Paused: workers start no further job of it.", "is_done": True}
