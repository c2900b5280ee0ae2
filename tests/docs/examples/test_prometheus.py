"""The alerts: each leads to the page that says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from celery_superfetch.console.links import DOCS_URL

ROOT = Path(__file__).resolve().parents[3]
OPERATE = ROOT / "docs" / "operate"
PAGES = f"{DOCS_URL}operate/"


def rules() -> dict[str, dict[str, Any]]:
    [group] = yaml.safe_load((ROOT / "examples" / "prometheus" / "alerts.yml").read_text())[
        "groups"
    ]
    return {rule["alert"]: rule for rule in group["rules"]}


def anchors(page: str) -> set[str]:
    text = (OPERATE / f"{page}.md").read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    return slugs | {*re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)}


def test_each_alert_leads_to_its_place_in_the_runbook():
    table = re.findall(
        r"^\| `(Superfetch\w+)` \| (.*) \|$", (OPERATE / "metrics.md").read_text(), re.M
    )
    advice = dict(table)
    assert advice.keys() == rules().keys()
    for name, rule in rules().items():
        url = rule["annotations"]["runbook_url"]
        assert url.startswith(PAGES)
        page, _, anchor = url.removeprefix(PAGES).partition(".html#")
        if "$labels.code" in anchor:
            continue  # each code of a finding is an anchor, as another test says
        assert anchor in anchors(page), url
        if page == "runbook":
            assert f"runbook.md#{anchor}" in advice[name]
