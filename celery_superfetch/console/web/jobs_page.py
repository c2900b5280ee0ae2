"""The page of jobs in flight: the conditions and the order in its address, and its own links.

``page`` makes an ``AskedJobs`` of each request. Pure: nothing is read, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from ...inspector import WAITING
from ...model.humanize import seconds_in
from ..job_texts import DEAD, STATE_TITLES, ended_of, examined_of, found_of
from ..jobs import BY_CLAIM, BY_RUN, BY_TASK, Which
from .filters import ACTIONS_BY_STATE, JOB_STATES, NO_JOB_WORDS

#: The name of an order in the page's address -> its name on the page. ``own``: as the jobs are
#: stored, those of each worker together.
ORDERS = {
    BY_RUN: "longest run first",
    BY_CLAIM: "oldest claim first",
    BY_TASK: "by task",
    "own": "by worker",
}
#: State -> the orders that the page offers; the first one is the default.
ORDERS_BY_STATE = {
    "running": (BY_RUN, BY_CLAIM, BY_TASK, "own"),
    "reserved": (BY_CLAIM, BY_TASK, "own"),
    "struck": (BY_RUN, BY_CLAIM, BY_TASK, "own"),
}
UNCLAIMED_ORDERS = ("own", BY_TASK)  # of jobs that no worker has claimed

#: Conditions in the address, as the fields of its form.
TYPED_CONDITIONS = ("task", "queue", "node", "longer")


class AskedJobs(NamedTuple):
    """The jobs that an address asks for."""

    state: str
    order: str
    #: The conditions of the form that are not empty, as they were typed.
    typed: dict[str, str]

    @classmethod
    def of(cls, params: Mapping[str, str]) -> AskedJobs:
        state = params.get("state", "")
        state = state if state in JOB_STATES else "running"
        orders, order = orders_of(state), params.get("sort", "")
        typed = {name: params.get(name, "").strip() for name in TYPED_CONDITIONS}
        return cls(
            state,
            order if order in orders else orders[0],
            {name: text for name, text in typed.items() if text},
        )

    @property
    def which(self) -> Which:
        typed = self.typed
        return Which(
            self.state,
            typed.get("queue"),
            _part(typed.get("task")),
            _part(typed.get("node")),
            longer=seconds_in(typed.get("longer", "")),
        )

    @property
    def sort(self) -> str:
        return "" if self.order == "own" else self.order

    def words(self) -> dict[str, Any]:
        """Return the values of the page's template."""
        is_wrong = "longer" in self.typed and self.which.longer is None
        orders = {name: ORDERS[name] for name in orders_of(self.state)}
        if "own" in orders and self.state == "parked":
            orders["own"] = "next due first"
        elif "own" in orders and self.state == "probation":
            orders["own"] = "longest wait first"
        return {
            "state": self.state,
            "states": JOB_STATES,
            "none_words": NO_JOB_WORDS[self.state],
            "ends": ACTIONS_BY_STATE.get(self.state, ()),
            "typed": self.typed,
            "wrong": self.typed["longer"] if is_wrong else "",
            "order": self.order,
            "orders": orders,
            "query": self.query(),
            "tabs": {state: self.query(state=state) for state in JOB_STATES},
        }

    def query(self, **changes: str) -> str:
        """Return the query of the address of these jobs, or of others."""
        fields = {"state": self.state, "sort": self.order, **self.typed, **changes}
        if "state" in changes:  # another state has other orders
            del fields["sort"]
        return urlencode(fields)


def words_of_job(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the template of one job's page."""

    def ends(job: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the actions on a job; a message without a task id cannot be revoked."""
        return ACTIONS_BY_STATE.get(job["state"], ()) if job["task_id"] else ()

    states = {**JOB_STATES, WAITING: "waiting on its queue", DEAD: "in the dead set"}
    words = {"found": found, "examined": examined_of(found), "states": states}
    return {**words, "ends": ends, "ended": ended_of(found)}


def words_of_search(text: str, found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values of the template of a search over all states; ``found`` is None if no text
    was searched for."""
    words = {"text": text, "found": found, "states": STATE_TITLES}
    return {**words, "summary": found_of(found) if found else ""}


def orders_of(state: str) -> tuple[str, ...]:
    return ORDERS_BY_STATE.get(state, UNCLAIMED_ORDERS)


def _part(text: str | None) -> str | None:
    """Return the pattern of a name: a part of it is enough."""
    return f"*{text}*" if text and "*" not in text else text
