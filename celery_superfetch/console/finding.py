"""One thing that a person on call is to know."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["critical", "warning", "note"]
LEVELS: tuple[Level, ...] = ("critical", "warning", "note")


class Finding(NamedTuple):
    """One thing that is to be known of."""

    level: Level
    #: For programs; it stays the same from version to version.
    code: str
    text: str
    #: What to do; empty where nothing is to be done.
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.fix}." if self.fix else f"{self.text}."
