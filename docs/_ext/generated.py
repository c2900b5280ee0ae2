"""Directives for what the docs take from the code: tables of options, and commands."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from celery_superfetch import cli
from celery_superfetch.console import probe
from celery_superfetch.model import config

#: Units as a narrow column has them; what is no quantity needs none.
SHORT = {"seconds": " s", "port": "", "text": ""}


def texts() -> dict[str, str]:
    """The option -> what is written below its declaration, on one line."""
    found = ModuleAnalyzer.for_module(config.__name__).find_attr_docs()
    said = {name: " ".join(lines).strip() for (cls, name), lines in found.items() if cls}
    missing = set(config.TYPE_BY_OPTION) - {name for name, text in said.items() if text}
    if missing:
        raise ExtensionError(f"options without a text: {sorted(missing)}")
    return said


def row(name: str, text: str) -> str:
    default: Any = config.DEFAULTS[name]
    if isinstance(default, str):
        # `sep` has control characters, which a browser does not show.
        default = f'"{default.encode("unicode_escape").decode()}"'
    elif isinstance(default, float):
        default = f"{default:g}" if default < 1e6 else str(int(default))
    if choices := config.CHOICES.get(name):
        one_of = ", ".join(f'`"{choice}"`' for choice in choices)
        text = f"{text} One of {one_of}."
    unit = config.UNIT_BY_OPTION[name]
    shown = "" if default is None else SHORT.get(unit, f" {unit}")
    return f"| `{name}` | `{default}`{shown} | {text} |"


class OptionTable(SphinxDirective):
    """A table of the options that are named, a word each."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        known = texts()
        names = " ".join(self.content).split()
        lines = ["| option | default | what it does |", "|---|---|---|"]
        return parsed(self, lines + [row(name, known[name]) for name in names])


class Command(SphinxDirective):
    """What one of the commands says of itself, how it is called, and its options."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        command: Any = cli.superfetch
        context = click.Context(command)
        for word in self.arguments[0].split():
            command = command.get_command(context, word)
            context = click.Context(command)
        lines = [*inspect.cleandoc(command.help).splitlines(), ""]
        options = [one for one in command.params if isinstance(one, click.Option)]
        if len(options) < len(command.params):  # else its name is all that there is to say
            words = ["celery -A shop superfetch", self.arguments[0]]
            words += command.collect_usage_pieces(context)
            lines += ["```text", " ".join(words), "```", ""]
        for option in sorted(options, key=lambda one: one.name == "as_json"):
            if record := option.get_help_record(context):
                lines += definition(*record)
        return parsed(self, lines)


class Probe(SphinxDirective):
    """The arguments of `superfetch-check`."""

    def run(self) -> list[nodes.Node]:
        lines = []
        for action in probe._parser(None)._actions:
            if isinstance(action, argparse._HelpAction):
                continue
            told = action.option_strings[0]
            if action.nargs != 0:
                told = f"{told} {action.metavar or action.dest.upper()}"
            said = str(action.help)
            lines += definition(told, f"{said[0].upper()}{said[1:]}.")
        return parsed(self, lines)


def definition(term: str, text: str) -> list[str]:
    return [f"`{term}`", f": {text}", ""]


def parsed(directive: SphinxDirective, lines: list[str]) -> list[nodes.Node]:
    """Markdown, as a page has it."""
    node = nodes.Element()
    found = StringList(lines, directive.get_source_info()[0])
    directive.state.nested_parse(found, directive.content_offset, node)
    return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("option-table", OptionTable)
    app.add_directive("command", Command)
    app.add_directive("probe", Probe)
    return {"parallel_read_safe": True}
