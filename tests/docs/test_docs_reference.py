"""docs/reference/ leaves out no option, no command, no key and no public name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import celery_superfetch
from celery_superfetch.cli import superfetch
from celery_superfetch.model import config
from celery_superfetch.store.keys import Keys
from support.house import HERE

#: What a key is made of -> as the page writes it.
WRITTEN = {"app_name": "<app>", "queue_list": "<queue list>"}
#: What ``Keys`` has beside keys.
NO_KEYS = {"prefix", "pattern", "parse"}


def page(name: str) -> str:
    return (HERE / "docs" / "reference" / f"{name}.md").read_text()


def texts() -> dict[str, str]:
    """The option -> the text below its declaration."""
    tree = ast.parse(Path(config.__file__).read_text())
    [cls] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    pairs = zip(cls.body, cls.body[1:], strict=False)
    return {
        ast.unparse(option.target): ast.literal_eval(text.value)
        for option, text in pairs
        if isinstance(option, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def test_every_option_is_shown_once():
    tables = re.findall(r"```\{option-table\}\n(.*?)```", page("options"), re.DOTALL)
    assert sorted(" ".join(tables).split()) == sorted(config.TYPE_BY_OPTION)


def test_every_option_has_a_text_and_a_unit():
    said = texts()
    assert said.keys() == config.TYPE_BY_OPTION.keys() == config.UNIT_BY_OPTION.keys()
    assert all(text.endswith(".") and len(text.split()) < 60 for text in said.values())
    assert "|" not in "".join(said.values()), "it is a cell of a table"


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command that the help lists, by its words; a group that does something by itself is one,
    too."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:  # a former name
            continue
        words = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, words)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield words, command


def test_every_command_is_shown_with_an_example():
    text = page("cli")
    shown = re.findall(r"```\{command\} (.+)\n```", text)
    assert sorted([*shown, "check"]) == sorted(name for name, _ in commands(superfetch))
    assert "```{probe}\n```" in text
    missing = [one for one in [*shown, "check"] if f"-A shop superfetch {one}" not in text]
    assert not missing


def test_every_command_and_its_options_say_what_they_do():
    for name, command in commands(superfetch):
        assert (command.help or "").splitlines()[0].endswith("."), name
        silent = [
            option.name
            for option in command.params
            if isinstance(option, click.Option) and not (option.help or "").endswith(".")
        ]
        assert not silent, name


def key_of(value: Any) -> str:
    """A key of ``Keys``, or what a method of it makes of placeholders."""
    if isinstance(value, str):
        return value
    words = inspect.signature(value).parameters
    return str(value(*(WRITTEN.get(word, f"<{word}>") for word in words)))


def test_every_key_has_one_row_with_its_type():
    keys = Keys()
    names = {name for name in dir(keys) if not name.startswith("_")}
    made = {key_of(getattr(keys, name)) for name in names - NO_KEYS}
    row = r"^\| `([^`]+)` \| (?:LIST|HASH|SET|ZSET|STRING|none) \|"
    assert sorted(re.findall(row, page("redis_data"), re.MULTILINE)) == sorted(made)


def test_every_public_name_is_shown():
    told = set(re.findall(r"[\w]+", page("api") + page("signals")))
    assert not {*celery_superfetch.__all__} - told
