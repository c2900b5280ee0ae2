"""A run of a script, or a command, that a class of ``store/`` wants to be sent. Pure data:
``Scripts`` turns it into the words of a Redis command, and ``Pipeline`` sends them, in any thread.
A call is in memory alone: if the process dies, a call that was not sent has had no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One run of a script, or one plain command: its name, keys and arguments."""

    name: str
    keys: Sequence[str]
    args: Sequence[Any]
    #: Send the script's whole text, not its digest. A server that has forgotten the digest answers
    #: NOSCRIPT, and the script is sent again: it would run after commands that were sent behind it
    #: and that rely on its effect.
    whole: bool = False
    is_plain: bool = False  # a command of Redis's own
