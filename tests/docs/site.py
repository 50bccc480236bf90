"""The hooks of mkdocs for the documentation site (`mkdocs.yml`).

Pages are written for the repository: they link files outside docs/, the fences of command blocks have words for the
tests behind their language, and lists and tables are in GitHub's Markdown. The hooks adapt these to the site, and warn
about images that no page shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {
    "CHANGELOG.md": "develop/changelog.md",
    "CONTRIBUTING.md": "develop/contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "develop/security.md",
}
"""File in the root of the repository → its page in the site."""
BOOSTS = {
    "develop/decisions/": 0.1,
    "develop/": 0.3,
    "reference/codes.md": 0.3,
    "reference/http-api.md": 0.3,
    "start/": 2.0,
    "how-to/": 2.0,
    "concepts/": 2.0,
}
"""Beginning of the path of a page → factor of its rank in the search. The first match counts."""
_SOURCES = "files/"
"""Pages that show the other files that pages link."""
_GENERATED = re.compile(r"\A<!--.*?-->\s+", re.S)
"""The comment at the beginning of a generated page; mkdocs takes the title from the first line."""
_MOVED = re.compile(r" has (?:moved to|been split into) \[")
"""Part of the text of a page at the old path of another one."""
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=(?:#[^)\s]*)?\))")
_FENCED = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)(?P<words>[^`\n]*)\n(?P<text>.*?)^(?P=fence)$", re.M | re.S)
_CODE = re.compile(r"`[^`\n]+`")
_LIST_WITHOUT_BLANK_LINE = re.compile(r"^(?![-\s|]|\d+\.)(.+)\n(?=- |1\. )", re.M)
_INDENTED = re.compile(r"^  (?=- )|(?<=\n\n)  (?=\S)", re.M)
_LANGUAGES = {".sh": "sh", ".json": "json", ".md": "markdown", ".py": "python", ".yaml": "yaml", ".yml": "yaml"}
_log = get_plugin_logger("site")
_shown: set[str] = set()
"""Images on pages, as paths below docs/."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the root of the repository, and a page for each other file that a page links."""
    _shown.clear()
    for name, uri in ROOT_PAGES.items():
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    shown = {path for page in files.documentation_pages() for path in _links(page) if (ROOT / path).exists()}
    shown |= {
        below for path in shown if (ROOT / path).is_dir() and not path.is_relative_to("docs") for below in _below(path)
    }
    for path in sorted(shown):
        uri = _site_uri(path)
        if uri.startswith(_SOURCES):
            files.append(File.generated(config, uri, content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt the Markdown of a page, and set its rank in the search: moved pages are not in it."""
    if page.file.src_uri.startswith(_SOURCES):
        return markdown
    markdown = _GENERATED.sub("", markdown)
    if _MOVED.search(markdown):
        page.meta["search"] = {"exclude": True}
    elif boost := next((factor for path, factor in BOOSTS.items() if page.file.src_uri.startswith(path)), None):
        page.meta["search"] = {"boost": boost}
    here = _repository_path(page.file.src_uri)

    def link_in_site(link: re.Match[str]) -> str:
        uri = _site_uri(_resolved(here, link[0]))
        _shown.add(uri)
        target = files.get_file_from_path(uri)
        if target and target.inclusion is InclusionLevel.EXCLUDED:
            _log.warning("%s links %s, which is not built", page.file.src_uri, uri)
        return os.path.relpath(uri, PurePosixPath(page.file.src_uri).parent)

    return _by_part(markdown, lambda text: _lists_and_tables(_LINK.sub(link_in_site, text)))


def on_env(env: Environment, config: MkDocsConfig, files: Files) -> None:
    """Warn about images that are on no page."""
    for file in files.media_files():
        if (
            file.src_dir == config.docs_dir
            and file.inclusion is not InclusionLevel.EXCLUDED
            and file.src_uri not in (*_shown, *config.extra_css)
        ):
            _log.warning("no page shows the image docs/%s", file.src_uri)


def _lists_and_tables(text: str) -> str:
    """Convert lists and tables from GitHub's Markdown to Python-Markdown, where the two differ."""
    text = _CODE.sub(lambda code: code[0].replace("\\|", "|"), text)
    return _INDENTED.sub("    ", _LIST_WITHOUT_BLANK_LINE.sub(r"\1\n\n", text))


def _by_part(markdown: str, outside: Callable[[str], str]) -> str:
    """Apply `outside` to the text between code blocks, and remove the words behind the languages of code blocks."""
    parts, end = [], 0
    for block in _FENCED.finditer(markdown):
        parts += [
            outside(markdown[end : block.start()]),
            "{fence}{language}\n{text}{fence}".format(**block.groupdict()),
        ]
        end = block.end()
    return "".join([*parts, outside(markdown[end:])])


def _links(page: File) -> Iterator[PurePosixPath]:
    """Yield the files of the repository that a page links."""
    here = _repository_path(page.src_uri)
    for link in _LINK.findall(_FENCED.sub("", page.content_string)):
        yield _resolved(here, link)


def _repository_path(uri: str) -> PurePosixPath:
    """Return the file of a page of the site, relative to the repository."""
    names = {page: name for name, page in ROOT_PAGES.items() if name != "README.md"}
    return PurePosixPath(names.get(uri, f"docs/{uri}"))


def _resolved(page: PurePosixPath, link: str) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(page.parent / link))


def _site_uri(path: PurePosixPath) -> str:
    """Return the page in the site for a file or directory of the repository.

    The name of the page does not begin with a dot, because mkdocs does not build such files.
    """
    if str(path) in ROOT_PAGES:
        return ROOT_PAGES[str(path)]
    if path.is_relative_to("docs"):
        return str(path.relative_to("docs"))
    name = _SOURCES + "/".join(part.lstrip(".") for part in path.parts)
    return f"{name}/index.md" if (ROOT / path).is_dir() else f"{name}.md"


def _below(path: PurePosixPath) -> list[PurePosixPath]:
    """Return the text files of a directory, at any depth."""
    found = [file for file in (ROOT / path).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return [PurePosixPath(file.relative_to(ROOT)) for file in sorted(found)]


def source_page(path: PurePosixPath) -> str:
    """Return the Markdown of a page that shows a file, or lists a directory. Search does not find it."""
    if (ROOT / path).is_dir():
        here = PurePosixPath(_site_uri(path)).parent
        body = "\n".join(
            f"- [{file.relative_to(path)}]({PurePosixPath(_site_uri(file)).relative_to(here)})" for file in _below(path)
        )
    else:
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        body = f"``````{_LANGUAGES.get(path.suffix, 'text')}\n{text}\n``````"
    return f"---\nsearch: {{exclude: true}}\n---\n\n# `{path}`\n\n{body}\n"
