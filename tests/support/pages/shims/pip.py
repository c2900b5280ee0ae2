"""What `pip install` does while the pages are tried: it looks whether all of it is installed.

To install for real would take half a minute a page, and a package index. That our extras exist is
asked of setup.cfg, that of others of what is installed: what a page needs is in the extra `test`.
"""

from __future__ import annotations

import configparser
import sys
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

OURS = "celery-superfetch"
CHECKOUT = Path(__file__).resolve().parents[4]


def check(named: str) -> None:
    """Fail unless it is there: `./celery-superfetch[web]`, `.[web]`, `flask>=3`."""
    named = named.removeprefix("./")  # a checkout of this name
    wanted = Requirement(OURS + named[1:] if named.startswith(".") else named)
    if wanted.name == OURS:
        parser = configparser.ConfigParser()
        parser.read(CHECKOUT / "setup.cfg")
        missing = wanted.extras - set(parser["options.extras_require"])
        assert not missing, f"no such extras: {', '.join(sorted(missing))}"
    else:
        found = version(wanted.name)
        assert found in wanted.specifier, f"{wanted} is asked for, and {found} is installed"


def main(command: str, *words: str) -> None:
    assert command == "install", f"only `pip install` is known here, not {command}"
    for word in words:
        if not word.startswith("-"):
            check(word)


if __name__ == "__main__":
    main(*sys.argv[1:])
