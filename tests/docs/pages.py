"""Read the code blocks of the documentation pages.

Blocks of `console`, `sh`, `bash` and `shell` are run. In `console`, lines that begin with `$ ` are commands, and the
lines below a command are its output. Words after the language of a fence have a meaning:

- `file=NAME` writes the block to that file, for the commands below it.
- `by=PLACE` names what runs the block instead, which is a test (`tests/….py::test_…`) or a file that contains its
  commands.
- `excerpt` marks lines of YAML that are not a document.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from tests.support.paths import ROOT

PAGES = [str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
RUN = frozenset({"console", "sh", "bash", "shell"})
ANYTHING = "…"
_BLOCK = re.compile(r"^( *`{3,})([^\n]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: the line on which its text begins, its language, the words after the language, and its text."""

    line: int
    language: str
    words: dict[str, str]
    text: str

    @property
    def commands(self) -> list[Command]:
        """The commands of the block in order. A block without prompts is one command."""
        if self.language != "console":
            return [Command(self.line, self.text, [])]
        found: list[Command] = []
        for number, line in enumerate(self.text.splitlines(), self.line):
            if line.startswith("$ "):
                found.append(Command(number, line.removeprefix("$ "), []))
            else:
                found[-1].printed.append(line)
        return found


@dataclass(frozen=True)
class Command:
    """A command. `printed`: the lines shown below it; if there are none, any output is right."""

    line: int
    text: str
    printed: list[str]

    def agrees(self, said: str) -> bool:
        """Return whether the output is as shown.

        `…` alone on a line matches any lines, within a line any text; runs of blanks count as one.
        """
        pattern = "".join(map(_line, self.printed))
        return not self.printed or re.fullmatch(pattern, _blanks(said)) is not None


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [_block(found, text) for found in _BLOCK.finditer(text)]


def _block(found: re.Match[str], text: str) -> Block:
    language, *words = found[2].split() or [""]
    pairs = dict(word.partition("=")[::2] for word in words)
    return Block(
        text.count("\n", 0, found.start()) + 2,
        language,
        pairs,
        textwrap.dedent(found[3]) if found[1].startswith(" ") else found[3],
    )


def _line(shown: str) -> str:
    if shown.strip() == ANYTHING:
        return r"(?:.*\n)*?"
    return ".*?".join(map(re.escape, _blanks(shown).rstrip("\n").split(ANYTHING))) + r"\n"


def _blanks(text: str) -> str:
    return "".join(f"{' '.join(line.split())}\n" for line in text.splitlines())
