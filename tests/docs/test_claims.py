"""Each claim of the README, and each row of the comparison's first table, is listed in
docs/contribute/claims.md, and what is to hold it exists."""

from __future__ import annotations

import json
import re
from statistics import median

import pytest

from support.house import HERE

README = (HERE / "README.md").read_text()
#: The first section of the comparison: a table of this package beside its peers.
AT_A_GLANCE = (HERE / "docs" / "inside" / "comparison.md").read_text().split("\n## ")[1]
#: What fences hold is no claim; the demo and the tests run it.
PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.DOTALL | re.MULTILINE)
CLAIM = re.compile(r"<!-- claim: ([\w-]+) -->")
#: Lists that promise nothing, by heading.
WITHOUT = {"Where to go next"}
#: A list entry of claims.md: its name, and all that stands in it.
ENTRIES = dict(
    re.findall(
        r"^- \*\*([\w-]+)\*\*: (.*?)(?=\n- \*\*|\n\n|\Z)",
        (HERE / "docs" / "contribute" / "claims.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
)
#: `file` "table", "case": value; an `x` behind it makes it a ratio to stock.
FIGURE = re.compile(r'`(benchmarks/results/\w+\.json)`\s+"([^"]+)",\s+"([^"]+)":\s+([\d.]+)(x?)')
#: Figures that promise nothing: addresses, versions, years, the licence.
NO_PROMISE = re.compile(r"\(https?://[^)]*\)|(?:Celery|Python|of|to) [\d.]+|20\d\d|BSD 3")
#: What the README rounds away.
ROUNDED = 0.1


def blocks() -> list[tuple[str, str]]:
    """List entries, rows of tables and paragraphs of the README, each with its heading."""
    heading, found = "", []
    for block in re.split(r"\n\n+|\n(?=- |\|)", PROSE):
        if title := re.match(r"#+ (.*)", block):
            heading = title[1]
        elif text := block.strip():
            found.append((heading, text))
    return found


def is_head_of_a_table(row: str) -> bool:
    return row.startswith(("| |", "|---", "| event |", "| measure |"))


def test_the_pages_and_the_list_name_the_same_claims():
    named = CLAIM.findall(README) + CLAIM.findall(AT_A_GLANCE)
    assert len(named) == len(set(named)), "each once"
    assert set(named) == set(ENTRIES)


def test_each_entry_and_each_row_of_the_readme_is_a_claim():
    unheld = [
        text
        for heading, text in blocks()
        if text.startswith(("- ", "| "))
        and heading not in WITHOUT
        and not is_head_of_a_table(text)
        and "`celery-superfetch[" not in text  # an extra
        and not CLAIM.search(text)
    ]
    assert not unheld


def test_each_row_of_the_comparison_at_a_glance_is_a_claim():
    rows = [row for row in AT_A_GLANCE.splitlines() if row.startswith("|")]
    assert len(rows) > 12
    assert not [row for row in rows if not is_head_of_a_table(row) and not CLAIM.search(row)]


def test_no_paragraph_of_the_readme_has_a_figure_that_nothing_holds():
    unheld = [
        text
        for _, text in blocks()
        if not text.startswith(("- ", "| ", "|-", "!["))
        and not CLAIM.search(text)
        and re.search(r"\d", NO_PROMISE.sub("", text))
    ]
    assert not unheld


@pytest.mark.parametrize("name", ENTRIES)
def test_what_holds_a_claim_exists(name):
    entry = ENTRIES[name]
    holders = re.findall(r"`((?:tests|benchmarks)/[\w/.]+|setup\.cfg)(?:::(\w+))?`", entry)
    assert holders or "comparison.md" in entry, "somebody holds it"
    for path, test in holders:
        assert (HERE / path).is_file(), path
        assert not test or re.search(rf"\b(?:def|class) {test}\b", (HERE / path).read_text()), test


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if FIGURE.search(entry)])
def test_a_figure_is_what_was_measured(name):
    for path, title, case, said, ratio in FIGURE.findall(ENTRIES[name]):
        tables = json.loads((HERE / path).read_text())["tables"]
        [table] = [table for table in tables if table["title"] == title]
        [values] = [row["values"] for row in table["rows"] if row["case"] == case]
        found = median(values["superfetch"])
        if ratio:
            found /= median(values["stock"])
        assert float(said) == pytest.approx(found, rel=ROUNDED), f"{title}, {case}"
