"""Sphinx extension: the directive `kiln-commands` documents the verbs of the `kiln` command from their parsers."""

from __future__ import annotations

import argparse
import contextlib
import io
import textwrap
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from kiln.workbench import main


class _FoundError(Exception):
    """Carries the parser that a verb has made."""


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Return the parser that a verb makes when it is called."""

    def stop(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        raise _FoundError(parser)

    kept = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = stop  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main.module_of(verb).main(["--help"])
    except _FoundError as found:
        parser = found.args[0]
        parser.prog = f"kiln {verb}"
        head, _, lines = (parser.epilog or "").partition("\n")
        if lines:  # they are lines of a terminal, not of a paragraph
            parser.epilog = f"{head}\n\n```text\n{textwrap.dedent(lines)}\n```"
        return parser
    finally:
        argparse.ArgumentParser.parse_args, argparse.ArgumentParser.parse_known_args = kept
    raise LookupError(f"kiln {verb} makes no parser")


def __getattr__(name: str) -> Any:
    if name.startswith("parser_of_"):
        return lambda: parser_of(name.removeprefix("parser_of_"))
    raise AttributeError(name)


class KilnCommands(SphinxDirective):
    """A section for each verb, by sphinx-argparse."""

    def run(self) -> list[nodes.Node]:
        parts: list[str] = []
        for verb in main.VERBS:
            parts += [f"## kiln {verb}", "", "```{argparse}", ":module: kiln_commands", f":func: parser_of_{verb}"]
            parts += [f":prog: kiln {verb}", ":nodefaultconst:", "```", ""]
        return self.parse_text_to_nodes("\n".join(parts), allow_section_headings=True)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("kiln-commands", KilnCommands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
