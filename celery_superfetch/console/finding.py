"""One thing that a person on call is to know."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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


def accepted(option: str) -> list[str]:
    """Return the codes that the option ``accepted_findings`` names."""
    return [code.strip() for code in option.split(",") if code.strip()]


def sorted_by_level(findings: Iterable[Finding], accepted: Collection[str]) -> list[Finding]:
    """Return findings, the worst first. A warning whose code its users accept is a note."""
    judged = [
        finding._replace(level="note", text=f"{finding.text} (accepted)")
        if finding.level == "warning" and finding.code in accepted
        else finding
        for finding in findings
    ]
    return sorted(judged, key=lambda finding: LEVELS.index(finding.level))
