"""Hooks of mkdocs.yml: the navigation from docs/index.md, and the Markdown files outside docs/ as pages.

A link to a file that is not a page, such as a source file, becomes plain text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("http://", "https://", "mailto:")


def linked_files(source: str, text: str) -> list[str]:
    """Return the project's Markdown files that a document links to, as paths from the root."""
    places = [_place(source, target) for _, _, target, _ in LINK.findall(text) if target]
    return [place for place in places if place.endswith(".md")]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation: a section for each heading of docs/index.md, with the pages that it links to."""
    text = (ROOT / "docs" / "index.md").read_text()
    sections: list[Any] = ["index.md"]
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        sections.append({title: [_uri(place) for place in linked_files("docs/index.md", body)]})
    config.nav = sections
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/ that are in the navigation."""
    linked = linked_files("docs/index.md", (ROOT / "docs" / "index.md").read_text())
    for place in dict.fromkeys(linked):  # a page may have two links
        if not place.startswith("docs/"):
            files.append(File.generated(config, _uri(place), abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's pages; what is not in the site loses its link."""
    here = page.file.src_uri
    source = here.removeprefix("project/") if here.startswith("project/") else f"docs/{here}"

    def pointed(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if not target or target.startswith(ELSEWHERE):
            return match.group()
        uri = _uri(_place(source, target))
        if files.get_file_from_path(uri) is None:
            return str(text)
        relative = posixpath.relpath(uri, posixpath.dirname(here) or ".")
        return f"{image}[{text}]({relative}{anchor or ''})"

    parts = FENCE.split(markdown)
    fences = FENCE.findall(markdown)
    shown = [LINK.sub(pointed, part) for part in parts]
    return "".join(part + fence for part, fence in zip(shown, [*fences, ""], strict=True))


def _place(source: str, target: str) -> str:
    """Return what a link in `source` points at, as a path from the root; a directory as its README."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return f"{place}/README.md" if (ROOT / place / "README.md").is_file() else place


def _uri(place: str) -> str:
    return place.removeprefix("docs/") if place.startswith("docs/") else f"project/{place}"
