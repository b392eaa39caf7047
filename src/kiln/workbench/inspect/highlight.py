"""Highlights source code for pages: for each line, runs of a letter and a length, such as `k6.1n4`."""

from __future__ import annotations

from collections.abc import Iterator

from pygments.lexer import Lexer, RegexLexer
from pygments.lexers.asm import LlvmLexer
from pygments.lexers.ptx import PtxLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Literal, Name, Number, Operator, Punctuation, String, Text, Whitespace


class MlirLexer(RegexLexer):
    """MLIR as it is printed."""

    name = "MLIR"
    tokens = {
        "root": [
            (r"\s+", Whitespace),
            (r"//.*", Comment),
            (r'"[a-z_]\w*\.[\w.]+"(?=\()', Name.Function),
            (r'"(?:[^"\\]|\\.)*"', String),
            (r"%[\w$.#-]+", Name.Variable),
            (r"@[\w$.-]+|@\"[^\"]*\"", Name.Class),
            (r"[!#][a-z_]\w*(?:\.\w+)*", Keyword.Type),
            (r"\^\w+", Name.Label),
            (r"\b(?:[su]?i\d+|[bt]?f\d+\w*|index|none|vector|memref|tensor|tuple|array)\b", Keyword.Type),
            (r"\b[a-z_]\w*\.[a-z_][\w.]*", Name.Function),
            (r"\b(?:module|return|to|step|iter_args|else|do|attributes|true|false|unit)\b", Keyword),
            (r"-?\b(?:0x[0-9A-Fa-f]+|\d+(?:\.\d+(?:[eE][+-]?\d+)?)?)\b", Number),
            (r"[\w$]+", Text),
            (r"[^\w\s]", Punctuation),
        ]
    }


class SassLexer(RegexLexer):
    """Machine code of NVIDIA GPUs as nvdisasm prints it."""

    name = "SASS"
    tokens = {
        "root": [
            (r"\s+", Whitespace),
            (r"^[\w.$]+:", Name.Label),
            (r"`\(\.L_\w+\)", Name.Label),
            (r"@!?U?P\w+", Keyword.Type),
            (r"-?\b0x[0-9a-f]+\b|-?\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b", Number),
            (r"!?\bU?P(?:\d|T)\b", Keyword.Type),
            (r"[-|~!]*\bU?R(?:\d+|Z)(?:\.\w+)*", Name.Variable),
            (r"\bSR_\w+(?:\.\w+)*", Name.Class),
            (r"\b[A-Z][A-Z0-9_]+(?:\.\w+)*\b", Name.Function),
            (r"\w+", Text),
            (r"[^\w\s]", Punctuation),
        ]
    }


_LEXERS: dict[str, type[Lexer]] = {
    "python": PythonLexer,
    "mlir": MlirLexer,
    "llvm": LlvmLexer,
    "ptx": PtxLexer,
    "sass": SassLexer,
}
_LETTERS = (
    (Comment, "c"),
    (Literal.String.Doc, "c"),
    (String, "s"),
    (Number, "d"),
    (Keyword.Type, "t"),
    (Keyword.Constant, "d"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Function, "n"),
    (Name.Decorator, "a"),
    (Name.Class, "a"),
    (Name.Label, "a"),
    (Name.Variable, "v"),
    (Name.Builtin, "t"),
    (Operator, "o"),
    (Punctuation, "o"),
)


class Colours:
    """Highlights lines and remembers them: those of one pass are mostly those of the pass before."""

    def __init__(self) -> None:
        self._encoded_runs: dict[tuple[str, str], str] = {}

    def runs(self, kind: str, lines: list[str]) -> list[str]:
        """Return the colours of lines of a language."""
        if kind == "python":  # a line alone does not say whether it is in a string
            return list(_runs(kind, lines))
        new = [line for line in dict.fromkeys(lines) if (kind, line) not in self._encoded_runs]
        self._encoded_runs.update(zip(((kind, line) for line in new), _runs(kind, new)))
        return [self._encoded_runs[kind, line] for line in lines]


def _runs(kind: str, lines: list[str]) -> Iterator[str]:
    lexer = _LEXERS[kind](stripnl=False)
    letters: dict[object, str] = {}
    runs: list[tuple[str, int]] = []
    count = 0
    for token, text in lexer.get_tokens("\n".join(lines)):
        letter = letters.get(token)
        if letter is None:
            letter = letters[token] = next((letter_ for parent, letter_ in _LETTERS if token in parent), ".")
        first, *others = text.split("\n")
        runs.append((letter, len(first)))
        for part in others:
            yield _encoded(runs)
            count += 1
            runs = [(letter, len(part))]
    for _ in range(count, len(lines)):
        yield ""


def _encoded(run: list[tuple[str, int]]) -> str:
    joined: list[tuple[str, int]] = []
    for letter, length in run:
        if length and joined and joined[-1][0] == letter:
            joined[-1] = (letter, joined[-1][1] + length)
        elif length:
            joined.append((letter, length))
    return "".join(f"{letter}{length}" for letter, length in joined)
