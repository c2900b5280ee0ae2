"""What a browser sends back to the page."""

from __future__ import annotations

import re
from typing import Any

from starlette.testclient import TestClient

HERE = "http://localhost"


def browser_at(served: Any, **options: Any) -> TestClient:
    """A browser at a page, which says with each form that the form is from there."""
    return TestClient(served, HERE, headers={"origin": HERE}, **options)


def key(browser: Any) -> str:
    """What the forms of this browser's pages have in them."""
    found = re.search(r'name="key" value="([^"]+)"', browser.get("/dead").text)
    assert found
    return found[1]
