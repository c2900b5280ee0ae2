"""The shop with an inspect command whose reply cannot be written as JSON: a worker carries
`inspect unwritable` out, and fails when it sends the reply.

`tests/evidence/test_control_messages.py` starts workers with it, and sends the command.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command

from support.apps.shop import app as app


@inspect_command(name="unwritable")
def unwritable(state: Any, **_: Any) -> set[int]:
    """Return a set, which is no JSON."""
    return {1, 2}
