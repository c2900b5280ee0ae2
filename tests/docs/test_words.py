"""No sentence is too long for somebody who reads under stress, in a second language."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.house import HERE
from support.words import length, read

MOST = 40
#: What a user reads; the rooms that explain the protocol may take a breath more.
PAGES = [
    HERE / "README.md",
    *(HERE / "docs" / f"{name}.md" for name in ("index", "why", "quickstart", "faq")),
    *(page for room in ("guide", "operate", "migrate") for page in HERE.glob(f"docs/{room}/*.md")),
]


def too_long(text: str) -> list[str]:
    return [f"{length(s)} words: {s}" for s in read(text).sentences if length(s) > MOST]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HERE)))
def test_no_sentence_is_too_long(page: Path) -> None:
    if not page.exists():
        pytest.skip("it is not written yet")
    assert not too_long(page.read_text())


def test_control_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = "One " + "word " * MOST + "is too much."
    short = f"One sentence. {'Another. ' * MOST}"
    for text in (long, f"- {long}", f":::{{note}}\n{long}\n:::", f"> {short} {long}"):
        assert len(too_long(text)) == 1, text
    assert not too_long(short)
    assert not too_long(f"```text\n{long}\n```")
    assert not too_long(f"It runs `{long}` there.")
