"""The Markdown files of the project: their blocks of code, commands and links."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEREDOC = re.compile(r"cat > (\S+) <<'END'\n(.*?)^END\n", re.MULTILINE | re.DOTALL)


@cache
def documents() -> list[Path]:
    """Return the Markdown files that belong to the project."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:  # an unpacked archive
        return sorted(p for p in ROOT.rglob("*.md") if not {".venv", "site"} & set(p.parts))
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    language: str
    text: str


def blocks(document: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    for indent, language, text in FENCE.findall(document.read_text()):
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        yield Block(document, language, "\n".join(lines) + "\n")


def without_code(document: Path) -> str:
    """Return a document without its fenced blocks and code spans."""
    return re.sub(r"`[^`]+`", "", FENCE.sub("", document.read_text()))


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a shell block, as lists of words; what stands between `&&`, `|` and `;` is one each."""
    text = HEREDOC.sub("", block.text).replace("\\\n", " ")
    text = re.sub(r"(?:^|(?<=\s))#[^\n]*", "", text, flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&|;\n")
    lexer.whitespace_split, lexer.commenters, lexer.whitespace = True, "", " \t"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("&|;\n"):
            if words:
                yield words
            words = []
        else:
            words.append(word)


def written_files(document: Path) -> dict[str, str]:
    """Return the files that a document has its reader write: by `cat`, or named before a block of TOML or Python."""
    text = document.read_text()
    files = dict(HEREDOC.findall(text))
    named = r"`([\w-]+\.(?:toml|py))`[^`]*(?:`[^`]+`[^`]*)*?\n\n```(?:toml|python)\n(.*?)^```"
    for name, content in re.findall(named, text, re.MULTILINE | re.DOTALL):
        files.setdefault(name, content)
    for content in re.findall(
        r"```python\n(# ([\w-]+\.py)\n.*?)^```", text, re.MULTILINE | re.DOTALL
    ):
        files.setdefault(content[1], content[0])
    return files


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as the usual viewers make them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", document.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {
        slug if not k else f"{slug}-{k}" for slug, times in found.items() for k in range(times + 1)
    }
