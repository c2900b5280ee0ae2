"""The links of a finding: to the view of the console that shows its cause, as an address of the
page and as a command, and to its section of the runbook.

``finding`` gives each finding its links; `status`, `doctor`, `check`, `server` and the page print
them. Values without I/O.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import quote, urlencode

#: The documentation, to which the links of findings lead.
DOCS_URL = "https://celery-superfetch.readthedocs.io/en/latest/"
RUNBOOK_URL = f"{DOCS_URL}operate/runbook.html"

#: An id that means the same in every part of an address.
PATH_SAFE = re.compile(r"[\w-]{1,200}", re.ASCII)

Kind = Literal[
    "queue",
    "queues",
    "worker",
    "workers",
    "job",
    "jobs",
    "dead job",
    "dead jobs",
    "recurring",
    "charts",
    "server",
]

#: Kind of a view -> the words of a link to it.
LABELS: dict[Kind, str] = {
    "queue": "The queue",
    "queues": "All queues",
    "worker": "The worker",
    "workers": "All workers",
    "job": "The job",
    "jobs": "The jobs",
    "dead job": "The dead job",
    "dead jobs": "The dead jobs",
    "recurring": "The recurring tasks",
    "charts": "The charts",
    "server": "The figures of the server",
}


class View(NamedTuple):
    """A view of the console: one thing of a kind, or all of them that meet some conditions."""

    kind: Kind
    name: str = ""
    conditions: Mapping[str, str] = {}
    #: The name in the command, where it is another one: of a worker its node name.
    short_name: str = ""

    @property
    def label(self) -> str:
        return LABELS[self.kind]

    @property
    def path(self) -> str:
        """The address of the view, below that of the page."""
        part = quote(self.name, safe="")
        match self.kind:
            case "queue":
                return f"queues?name={part}"
            case "worker":
                return f"workers/{part}"
            case "job":
                return f"jobs/{part}"
            case "dead job":
                return f"dead/{part}"
            case "server":
                return f"server#{part}"
            case "dead jobs":
                return f"dead?{urlencode(self.conditions)}"
            case "jobs":
                return f"jobs?{urlencode(self.conditions)}"
        return self.kind

    @property
    def command(self) -> str:
        """The command that shows the same, without the words before it; empty: `status` itself."""
        name = shlex.quote(self.short_name or self.name)
        options = "".join(
            f" --{option} {shlex.quote(value)}" for option, value in self.conditions.items()
        )
        commands: dict[Kind, str] = {
            "queue": f"queue show {name}",
            "queues": "",
            "worker": f"workers show {name}",
            "job": f"jobs show {name}",
            "jobs": f"jobs{options}",
            "dead job": f"dead show {name}",
            "dead jobs": f"dead list{options}",
        }
        return commands.get(self.kind, self.kind)


#: Code of a finding about the server -> the figure that it is about (``server.Figure.name``).
FIGURE_BY_CODE = {
    "memory": "memory",
    "eviction": "policy",
    "evicted": "evicted",
    "no-persistence": "persistence",
    "save-failed": "snapshot",
    "aof-failed": "persistence",
    "connections": "connections",
    "replica-lag": "replicas",
    "restarted": "uptime",
    "data-lost": "uptime",
    "slow-detection": "commands",
    "acl-required": "commands",
    "acl-keys": "commands",
    "acl-optional": "commands",
    "missing-required": "commands",
    "missing-optional": "commands",
}

#: Code of a finding -> its view, where that is always the same one.
VIEW_BY_CODE = {
    "no-worker": View("workers"),
    "no-pass": View("workers"),
    "unacked": View("workers"),
    "versions": View("workers"),
    "beat-silent": View("recurring"),
    "no-beat-entry": View("recurring"),
    "lost-jobs": View("queues"),
    "dead-set-full": View("dead jobs"),
    "unannounced": View("dead jobs"),
    "chart-series": View("charts"),
    **{code: View("server", figure) for code, figure in FIGURE_BY_CODE.items()},
}


def runbook_of(code: str) -> str:
    """Return the address of a finding's section in the runbook."""
    return f"{RUNBOOK_URL}#{code}"


def job_name(job: Mapping[str, str]) -> str:
    """Return the name of a job in an address of the page: its task id; the digest of its message,
    if a path cannot have that id."""
    id = job["id"]
    return id if id and PATH_SAFE.fullmatch(id) else job["digest"]
