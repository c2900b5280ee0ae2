"""Messages as they should be, and broken in each place: envelope, headers, properties and body."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

TASKS = ("odd.any", "odd.rated")

#: What no field expects.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 5, -1, 1.5, 10**30, float("inf"), float("nan")),
    *("", "text", "5", "\ud800", "a\nb", "0001-01-01T00:00:00+14:00", "2000-01-01T00:00:00"),
    *([], [1], [1, 2], [[]], [None, None], ["a", "b"], [{}], {}, {"a": 1}, {"a": [{}]}),
)

#: Fields of a message, by where they are.
ENVELOPE = ("body", "headers", "properties", "content-type", "content-encoding")
HEADERS = (
    *("task", "id", "lang", "root_id", "parent_id", "group", "group_index", "shadow", "eta"),
    *("expires", "retries", "timelimit", "argsrepr", "kwargsrepr", "origin", "ignore_result"),
    *("stamped_headers", "stamps", "compression", "redelivered", "replaced_task_nesting"),
    *("superfetch", "headers", "utc", "chord", "reply_to"),
)
PROPERTIES = (
    *("correlation_id", "reply_to", "delivery_mode", "delivery_info", "priority"),
    *("body_encoding", "delivery_tag"),
)
EMBED = ("callbacks", "errbacks", "chain", "chord")
BODY_1 = (
    *("task", "id", "args", "kwargs", "retries", "eta", "expires", "timelimit", "utc", "taskset"),
    *("callbacks", "errbacks", "chord", "group"),
)


def encoded(body: Any) -> str:
    """A body as Celery's producers write it."""
    return base64.b64encode(json.dumps(body).encode()).decode()


def message(
    name: str,
    protocol: int = 2,
    task: str = "odd.any",
    envelope: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    body: Any = ...,
) -> dict[str, Any]:
    """A message of a protocol with some of its fields changed; `...` stands for one left out."""
    id = f"id-{name}"
    if protocol == 2:
        told = {"lang": "py", "task": task, "id": id, "root_id": id, "retries": 0, "eta": None}
        inner: Any = [[name], {}, dict.fromkeys(EMBED)]
    else:
        told, inner = {}, {"task": task, "id": id, "args": [name], "kwargs": {}, "retries": 0}
    whole = {
        "body": encoded(inner if body is ... else body),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": _with(told, headers),
        "properties": _with(
            {
                "odd": name,
                "correlation_id": id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": "celery"},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": f"tag-{name}",
            },
            properties,
        ),
    }
    return _with(whole, envelope)


def _with(fields: dict[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    changed = {**fields, **(changes or {})}
    return {key: value for key, value in changed.items() if value is not ...}


def payload(whole: Any) -> bytes:
    """The bytes of a message on its queue."""
    return json.dumps(whole).encode()


#: Each of these ended a worker once: its name, and its message's fields.
KNOWN: dict[str, dict[str, Any]] = {
    "body []": {"body": []},
    "body {}": {"body": {}},
    "body 5": {"body": 5},
    "body null": {"body": None},
    "body of two": {"body": [[], {}]},
    "body not base64": {"envelope": {"body": "%"}},
    "no body": {"envelope": {"body": None}},
    "protocol 1, not JSON": {"protocol": 1, "envelope": {"body": "eA=="}},
    "protocol 1, refused": {
        "protocol": 1,
        "envelope": {"content-type": "application/x-python-serialize"},
    },
    "timelimit 5": {"headers": {"timelimit": 5}},
    "timelimit [1]": {"headers": {"timelimit": [1]}},
    "timelimit of texts": {"headers": {"timelimit": ["a", "b"]}},
    "timelimit of one side": {"headers": {"timelimit": [10**30, float("nan")]}},
    "past, timelimit [1]": {"headers": {"eta": "2000-01-01T00:00:00", "timelimit": [1]}},
    "rated, timelimit [1]": {"task": "odd.rated", "headers": {"timelimit": [1]}},
    "rated, past": {
        "task": "odd.rated",
        "headers": {"eta": "2000-01-01T00:00:00", "stamped_headers": 5},
    },
    "id a number": {"headers": {"id": 1.5}},
    "callbacks a number": {"body": [[], {}, {"callbacks": 5, "errbacks": 5}]},
    "id a list": {"headers": {"id": ["a"]}},
    "no id": {"headers": {"id": ...}},
    "task a list": {"headers": {"task": ["odd.any"]}},
    "stamped_headers 5": {"headers": {"stamped_headers": 5}},
    "stamped_headers [[]]": {"headers": {"stamped_headers": [[]], "stamps": {}}},
    "stamps a list": {"headers": {"stamped_headers": ["by"], "stamps": ["by"]}},
    "stamps a text": {"headers": {"stamped_headers": ["by"], "stamps": "by"}},
    "a stamp that is missing": {"headers": {"stamped_headers": ["by"], "stamps": {}}},
    "no stamps": {"headers": {"stamped_headers": ["by"]}},
    "shadow a list": {"headers": {"shadow": ["a"]}},
    "expires empty": {"headers": {"expires": ""}},
    "embed a list": {"body": [[], {}, [1]]},
    "kwargs a list": {"body": [[], [1], {}]},
    "delivery_tag a list": {"properties": {"delivery_tag": ["a"]}},
    "protocol 1, timelimit 5": {
        "protocol": 1,
        "body": {"task": "odd.any", "id": "a", "args": [], "kwargs": {}, "timelimit": 5},
    },
    "protocol 1, id a list": {
        "protocol": 1,
        "body": {"task": "odd.any", "id": ["a"], "args": [], "kwargs": {}},
    },
    "protocol 1, task a list": {
        "protocol": 1,
        "body": {"task": ["odd.any"], "id": "a", "args": [], "kwargs": {}},
    },
}

odd = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=5,
)


def _changes(fields: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(fields), odd | st.just(...), max_size=2)


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of `message` for one that is broken in some places, or in none."""
    protocol = draw(st.sampled_from((1, 2)))
    chosen: dict[str, Any] = {"protocol": protocol, "task": draw(st.sampled_from(TASKS))}
    where = draw(
        st.sets(st.sampled_from(("envelope", "headers", "properties", "body")), max_size=2)
    )
    if "envelope" in where:
        chosen["envelope"] = draw(_changes(ENVELOPE))
    if "headers" in where:
        chosen["headers"] = draw(_changes(HEADERS))
    if "properties" in where:
        chosen["properties"] = draw(_changes(PROPERTIES))
    if "body" in where:
        chosen["body"] = draw(odd | (_bodies_1() if protocol == 1 else _bodies_2()))
    return chosen


def _bodies_1() -> st.SearchStrategy[Any]:
    whole = {"task": "odd.any", "id": "a", "args": [], "kwargs": {}, "retries": 0}
    return _changes(BODY_1).map(lambda changes: _with(whole, changes))


def _bodies_2() -> st.SearchStrategy[Any]:
    embed = _changes(EMBED).map(lambda changes: _with(dict.fromkeys(EMBED), changes))
    return st.tuples(odd | st.just([]), odd | st.just({}), odd | embed).map(list)
