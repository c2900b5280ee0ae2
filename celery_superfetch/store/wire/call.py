"""A script or a command that a structure of the store asks for. Pure data: ``Scripts`` makes its
words, and ``Pipeline`` sends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One run of a script, or one plain command: its name, keys and arguments."""

    name: str
    keys: Sequence[str]
    args: Sequence[Any]
    #: Send the whole text, which no server can have forgotten: its successors rely on it.
    whole: bool = False
    is_plain: bool = False  # a command of Redis's own
