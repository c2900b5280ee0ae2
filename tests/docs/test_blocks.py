"""What the pages tell one to do works: each is read by somebody who does it, from top to bottom.

A page is one scenario, in a fresh folder with a real server. `redis://localhost:6379` is the
address of that server in files and commands (the number of the database stays); no other address is
changed. A comment on the line before a block says what to do with it:

| block | what is done |
|---|---|
| `sh` | run by `bash -e`; the exit status has to be 0 |
| `python` | run as a script, so it is complete |
| `sh`, after `<!-- any exit -->` | run by `bash`; its exit status, a finding, may be any |
| any, after `<!-- file: shop.py -->` | written to that file; a later one of that name replaces it |
| `sh`, after `<!-- background -->` | left to run until the page ends, once it is ready |
| `json`, `yaml`, `toml`, `ini` | parsed |
| `text` | output, for the reader |
| `diff` | a change to a checkout; `test_first_hour.py` makes it |
| any, after `<!-- not run: REASON -->` | nothing; the reason says what is missing here |
| any, after `<!-- run by: tests/FILE.py -->` | nothing: that test, which names the page, runs it |
| any, after `<!-- needs: django -->` | the tab ends here, skipped, where that is missing |

A comment whose first line is `<!-- hidden sh` and whose last is `-->` is a block that the page does
not show: it waits, or checks what a reader sees. `<!-- hidden python` is one of that language.

Any other block fails. In a set of tabs each tab is one reader, with a folder and a server of its
own: who picks "Django" reads what is before the set, that tab in each set that has it (the first
tab elsewhere), and what comes after.

- `celery` and `python` are those of the venv that runs pytest.
- `pip install` looks whether all of it is there, and installs nothing
  (support/pages/shims/pip.py); `python -m venv` makes a folder with links to the tests' venv.
- `kubectl exec ... -- COMMAND` runs the command here; of other commands of `kubectl` the names are
  checked (support/pages/shims/kubectl.py).
- A worker that a page kills has a file with its pid: `celery -A shop worker --pidfile one.pid`,
  then `kill -9 "$(cat one.pid)"`. `pkill` and `pgrep` would find processes that are not the page's.
- What waits for something polls for it, with an end; it does not sleep for as long as it may take.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.house import HERE
from support.pages.blocks import Block, blocks, fate, readers
from support.pages.reader import Reader
from support.servers.server import Server

PAGES = [HERE / "README.md", HERE / "CONTRIBUTING.md", *sorted(HERE.glob("docs/**/*.md"))]
#: What makes a test of an example: it belongs into a hidden block.
SCAFFOLDING = re.compile(
    r"\b(until|while) .*; do\b|\btest \"\$\(|^! |\|\| (true|echo)", re.MULTILINE
)
#: Would find the processes of others, too.
BY_NAME = re.compile(r"\b(pkill|pgrep|killall|pidof)\b")


def name(page: Path) -> str:
    return str(page.relative_to(HERE).with_suffix(""))


def scenarios() -> Iterator[Any]:
    for page in PAGES:
        for tab, found in readers(page).items():
            if found:
                yield pytest.param(found, id=f"{name(page)}:{tab}".strip(":"))


@pytest.fixture
def read(tmp_path: Path, fresh_server: Callable[..., Server]) -> Iterator[Callable[..., None]]:
    """`read(blocks)`: do what they say."""
    reader = Reader(tmp_path, fresh_server())
    yield reader.read
    reader.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    # The longest come first: one that began last would be waited for.
    "found",
    sorted(scenarios(), key=lambda param: -sum(fate(b) == "run" for b in param.values[0])),
)
def test_what_a_page_says_works(found, read):
    read(found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_it_is_decided_what_becomes_of_each_block(page):
    found = blocks(page)
    print(name(page), dict(Counter(fate(block).partition(":")[0] for block in found)))
    assert not [f"{b.place}: {why}" for b in found if (why := fate(b)).startswith("undecided")]
    assert not [block.place for block in found if BY_NAME.search(block.text)]
    run = {block.place for reads in readers(page).values() for block in reads}
    assert run == {block.place for block in found}, "each is read by somebody"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_shows_the_scaffolding_of_its_test(page):
    shown = [block for block in blocks(page) if not block.hidden and fate(block) == "run"]
    assert not [block.place for block in shown if SCAFFOLDING.search(block.text)]


def test_few_blocks_are_excused():
    fates = Counter(fate(block).partition(":")[0] for page in PAGES for block in blocks(page))
    assert fates["excused"] * 6 <= fates["run"] + fates["file"] + fates["parsed"], fates


# -- controls


def say(folder: Path, text: str) -> list[Block]:
    """A page with this text, as its only reader comes past it."""
    page = folder / "page.md"
    page.write_text(text)
    [found] = readers(page).values()
    return found


SHOP = """# A shop

<!-- file: shop.py -->
```python
from celery import Celery
import celery_superfetch

app = Celery("shop", broker="redis://localhost:6379/3", backend="redis://localhost:6379/4")
celery_superfetch.install(app{options})


@app.task(name="shop.note")
def note(): ...
```
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# A\n\n```sh\ntrue\nfalse\n```\n", r"page.md:4: exit status 1"),
        ("```sh\ntrue\n```\n\n```python\n1 / 0\n```\n", r"page.md:6: (.|\n)*line 6(.|\n)*ZeroDiv"),
        ("a\n\n:::{note}\n\n```json\n{,}\n```\n:::\n", r"page.md:6: no valid json"),
        ("<!-- any exit -->\n```sh\ntrue\n```\n\n```sh\nfalse\n```\n", r"page.md:7: exit status 1"),
        ("a\n\n<!-- hidden sh\ntrue\nfalse\n-->\n", r"page.md:4: exit status 1"),
        ("<!-- hidden rst\ntrue\n-->\n", r"page.md:2: undecided: .* 'rst'"),
        ("```console\n$ true\n```\n", r"page.md:2: undecided: .* 'console'"),
        ("```\ntrue\n```\n", r"page.md:2: undecided: .* 'no language'"),
        ("<!-- not run: -->\n```sh\ntrue\n```\n", r"page.md:3: undecided: .* without a reason"),
        (
            "<!-- run by: tests/docs/test_site.py -->\n```sh\ntrue\n```\n",
            r"page.md:3: undecided: .* does not name page.md",
        ),
        ("<!-- background -->\n```sh\ntrue\n```\n", r"page.md:3: it has ended"),
        ("```sh\npip install celery-superfetch[wrong]\n```\n", r"no such extras: wrong"),
        ("```sh\npip install nobody-has-this\n```\n", r"nobody-has-this"),
        (
            SHOP.format(options=", strike_limt=2") + "```sh\ncelery -A shop report\n```\n",
            r"strike_limit",
        ),
    ],
)
def test_control_what_is_wrong_is_told_with_its_line(text, why, tmp_path, read):
    with pytest.raises(pytest.fail.Exception, match=why):
        read(say(tmp_path, text))


@pytest.mark.parametrize("wanted", ["nobody-has-this", "celery, kombu<1"])
def test_control_a_page_that_needs_what_is_missing_is_skipped(wanted, tmp_path, read):
    with pytest.raises(pytest.skip.Exception, match=wanted.rpartition(", ")[2]):
        read(say(tmp_path, f"<!-- needs: {wanted} -->\n```sh\nfalse\n```\n"))


def test_a_worker_of_a_page_is_killed_by_its_pid_and_none_outlives_the_page(tmp_path, fresh_server):
    worker = (
        "<!-- background -->\n```sh\ncelery -A shop worker -n {n} --pidfile {n}.pid -c 1\n```\n"
    )
    text = SHOP.format(options="") + worker.format(n="one") + worker.format(n="two")
    text += '```sh\nkill -9 "$(cat one.pid)"\ncelery -A shop call shop.note\nsleep 500 &\n```\n'
    server = fresh_server()
    reader = Reader(tmp_path, server)
    try:
        reader.read(say(tmp_path, text))
        assert server.client(3).keys(), "the number of the database has stayed"
        assert len(reader.running()) >= 3
    finally:
        reader.close()
    assert not reader.running()


def test_each_tab_has_a_reader_who_reads_what_is_around_it(tmp_path):
    page = tmp_path / "page.md"
    tab = ":::{{tab-item}} {0}\n```text\n{0}\n```\n:::\n"
    tabs = "::::{tab-set}\n" + tab.format("Celery") + tab.format("Django") + "::::\n"
    more = "::::{tab-set}\n" + tab.format("Django") + tab.format("Flask") + "::::\n"
    page.write_text(
        "```text\nall\n```\n\n" + tabs + "\n" + more + "\n- a\n  ```text\n  end\n  ```\n"
    )
    assert {tab: [b.text.strip() for b in found] for tab, found in readers(page).items()} == {
        "Celery": ["all", "Celery", "Django", "end"],
        "Django": ["all", "Django", "Django", "end"],
        "Flask": ["all", "Celery", "Flask", "end"],
    }
