"""docs/run/deploying.md and the tests that check it say the same."""

from __future__ import annotations

from support.rows import checked, documented


def test_every_row_of_the_page_has_a_test_and_every_test_a_row():
    rows = documented()
    assert rows, "the page has no table any more"
    assert len(rows) == len(set(rows)), "a row twice"
    assert {name for name, _ in rows} == set(checked())
