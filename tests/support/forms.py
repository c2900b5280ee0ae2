"""What a browser sends back to the page."""

from __future__ import annotations

import re
from typing import Any


def key(browser: Any) -> str:
    """What the forms of this browser's pages have in them."""
    found = re.search(r'name="key" value="([^"]+)"', browser.get("/dead").text)
    assert found
    return found[1]
