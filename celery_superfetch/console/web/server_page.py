"""The page's view of the server: gives the template its values.

``page`` calls it in a thread. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..finding import LEVELS
from ..links import FIGURE_BY_CODE
from ..server import figures, is_large, largest_of, size_of


def words_of_server(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the template ``server.html`` for a document of ``server_of``: each
    figure with the findings about it, the worst first."""
    findings = sorted(document["findings"], key=lambda finding: LEVELS.index(finding["level"]))
    rows = [
        {
            **figure._asdict(),
            "findings": [f for f in findings if FIGURE_BY_CODE.get(f["code"]) == figure.name],
        }
        for figure in figures(document)
    ]
    words = {"found": document, "rows": rows, "worst": findings[0] if findings else None}
    return {**words, "size_of": size_of, "largest_of": largest_of, "is_large": is_large}
