"""URLs within a text: masks their users and passwords, and the values of their queries.

``hiding`` calls it. Pure functions.
"""

from __future__ import annotations

import re

#: A URL, up to the next white space: a password may hold any other character.
URL = re.compile(r"(?P<scheme>(?:[a-z][a-z0-9+.-]{0,30}:)?//)(?P<rest>[^\s<>]+)", re.IGNORECASE)

#: A parameter of a path: ``/shop;jsessionid=...``.
OF_PATH = re.compile(r"(?P<name>;[^=/;]+=)[^/;]*")

#: A host, perhaps with its port: what is before a path has no password, if it is this.
HOST = re.compile(r"(?:\[[0-9a-f:.]*\]|[^:\[\]]*)(?::\d*)?[\"'),\]}]*", re.IGNORECASE)

#: A parameter of a query, with its value if it has one.
PARAMETER = re.compile(r"(?P<name>[^&;=]+)(?P<value>=[^&;]*)?")


def mask_urls(text: str) -> str:
    """Replace, in each URL of a text, user and password, and the values of query and fragment."""
    return URL.sub(_masked, text) if "//" in text else text


def without_urls(text: str) -> str:
    return URL.sub("", text)


def _masked(match: re.Match[str]) -> str:
    address = match["rest"]
    path = re.split(r"[?#]", address, maxsplit=1)[0]
    authority = path.partition("/")[0]
    if "@" in authority:
        login = path.rpartition("@")[0]
    elif HOST.fullmatch(authority):
        login = ""
    else:  # its password is not percent-encoded, and has a slash or a question mark
        login = address.rpartition("@")[0]
    if login or authority.startswith("@"):
        address = f"***{address[len(login) :]}"
    before, anchor, fragment = address.partition("#")
    address, mark, query = before.partition("?")
    address = OF_PATH.sub(r"\g<name>***", address)
    query = PARAMETER.sub(lambda found: _value_masked(found, "***"), query)
    fragment = PARAMETER.sub(lambda found: _value_masked(found, found["name"]), fragment)
    return f"{match['scheme']}{address}{mark}{query}{anchor}{fragment}"


def _value_masked(parameter: re.Match[str], without_value: str) -> str:
    """Mask ``name=value``. ``without_value``: what stands for a parameter that has no name: in a
    query that is a value, and in a fragment the name of a place in the page."""
    return f"{parameter['name']}=***" if parameter["value"] else without_value
