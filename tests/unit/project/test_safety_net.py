"""The list of frozen tests (evidence/results/frozen_tests.md) names files that exist."""

from __future__ import annotations

import re

import pytest

from support.house import HERE

LIST = HERE / "evidence" / "results" / "frozen_tests.md"
[COMMAND] = re.findall(r"```sh\n(git diff \w+ -- .*?)```", LIST.read_text(), re.S)
NET = COMMAND.replace("\\\n", " ").partition(" -- ")[2].split()


@pytest.mark.parametrize("name", NET)
def test_a_frozen_file_has_not_moved(name: str) -> None:
    assert (HERE / name).exists(), f"{name} has moved or gone: the list must say where, and why"


def test_the_net_has_no_file_of_the_port() -> None:
    port = ("tests/support/driver.py", "tests/support/sends.py", "tests/support/interventions.py")
    assert not {*port} & {*NET}
