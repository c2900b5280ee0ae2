"""A finding: a fault, or a risk, that a person on call has to know, with its fix.

``doctor`` and the modules ``findings_of_...`` make them; `status`, `check`, the page and the
metrics show them. Values without I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

from .links import VIEW_BY_CODE, View, runbook_of

Level = Literal["critical", "warning", "note"]
LEVELS: tuple[Level, ...] = ("critical", "warning", "note")

#: Names (of tasks, queues or keys) that one finding lists.
NAMES_LISTED = 8


class Finding(NamedTuple):
    """A fault or a risk, and its fix."""

    level: Level
    #: For programs; it stays the same from version to version.
    code: str
    text: str
    #: The action to take; empty where there is none.
    fix: str = ""
    #: The view of its cause; None: its code has one of its own (``links.VIEW_BY_CODE``), or none.
    about: View | None = None

    @property
    def view(self) -> View | None:
        """The view of the console that shows its cause."""
        return self.about or VIEW_BY_CODE.get(self.code)

    @property
    def runbook(self) -> str:
        """The address of its section in the runbook."""
        return runbook_of(self.code)

    @property
    def command(self) -> str:
        """The command that shows its cause; empty if there is none."""
        return self.view.command if self.view else ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as data, with its links."""
        return {
            **{name: getattr(self, name) for name in ("level", "code", "text", "fix")},
            "command": self.command or None,
            "page": self.view.path if self.view else None,
            "runbook": self.runbook,
        }

    def __str__(self) -> str:
        return f"{self.text}: {self.fix}." if self.fix else f"{self.text}."


def accepted(option: str) -> list[str]:
    """Return the codes that the option ``accepted_findings`` names."""
    return [code.strip() for code in option.split(",") if code.strip()]


#: Codes of warnings about a setting, which stays as it is until a person changes it.
STANDING = frozenset({"eviction", "no-persistence"})

#: Codes of notes about a recent event.
EVENTS = frozenset({"dead-owner", "job-killed", "worker-died"})


def sorted_by_level(findings: Iterable[Finding], accepted: Collection[str]) -> list[Finding]:
    """Return findings, the most urgent first. A warning whose code its users accept is a note."""
    judged = [
        finding._replace(level="note", text=f"{finding.text} (accepted)")
        if finding.level == "warning" and finding.code in accepted
        else finding
        for finding in findings
    ]
    return sorted(judged, key=_urgency)


def _urgency(finding: Finding) -> tuple[int, int]:
    """Return the place of a finding among others. A warning about a setting comes after the notes
    about recent events: it is as true tomorrow, and would hide them."""
    is_event = finding.level == "note" and finding.code in EVENTS
    level: Level = "warning" if is_event else finding.level
    is_standing = finding.level == "warning" and finding.code in STANDING
    return LEVELS.index(level), 2 if is_standing else int(is_event)


def some(names: Iterable[str]) -> str:
    """Return the first few of some names, and the number of the others, as text."""
    ordered = sorted(names)
    others = f" and {len(ordered) - NAMES_LISTED} more" if len(ordered) > NAMES_LISTED else ""
    return ", ".join(ordered[:NAMES_LISTED]) + others
