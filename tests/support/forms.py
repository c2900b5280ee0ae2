"""What a browser gets from the page, and sends back."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

from starlette.testclient import TestClient

HERE = "http://localhost"

#: Text that would be markup, and an order to a terminal.
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b[2J"


def browser_at(served: Any, **options: Any) -> TestClient:
    """A browser at a page, which says with each form that the form is from there."""
    return TestClient(served, HERE, headers={"origin": HERE}, **options)


def key(browser: Any) -> str:
    """What the forms of this browser's pages have in them."""
    found = re.search(r'name="key" value="([^"]+)"', browser.get("/dead").text)
    assert found
    return found[1]


class Tags(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.count = Counter[str]()
        self.attributes = set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        self.attributes |= {name for name, _ in attributes}
