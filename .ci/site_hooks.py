"""What mkdocs does not do by itself: README and other files that pages link to, folders in `nav`, the list of commands.

Pages are written for readers of the repository, so their links go from file to file. The site mirrors that: README is its
first page, and whatever else a page links to outside docs/ is taken along below `repository/`. A link to a file that is
not there stays as it is, and the strict build refuses it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from txlayer.cli.main import build_app
from txlayer.cli.spark import app as spark_app

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = "<!-- commands -->"
"""Where docs/reference/cli.md has the list."""
HOME = {"README.md": "index.md"}

_FENCE = re.compile(r"^(```.*?^```)$", re.DOTALL | re.MULTILINE)
_WORDS = re.compile(r"^(```\w+) \w+=[^\"\s]+$", re.MULTILINE)
"""Words behind a block's language that are for our tests (`json vectors=ids`); mkdocs takes it for no block at all."""
_LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")


def site_path(path: str) -> str:
    """Where a file of the repository stands in the site's sources."""
    pure = PurePosixPath(path)
    if pure.is_relative_to("docs"):
        return str(pure.relative_to("docs"))
    return HOME.get(path, f"repository/{path}")


def repository_path(path: str) -> str:
    """The other way round."""
    for source, there in HOME.items():
        if path == there:
            return source
    return path.removeprefix("repository/") if path.startswith("repository/") else f"docs/{path}"


def linked(page: str, text: str) -> Iterator[str]:
    """Paths in the repository that the text of a page links to, when they exist."""
    for match in _LINK.finditer(_FENCE.sub("", text)):
        path = os.path.normpath(Path(page).parent / match[2])
        if (ROOT / path).exists():
            yield path


def first_page(folder: str) -> str:
    """Stands for a folder: its first page in the order of names."""
    return str(min((ROOT / folder).glob("*.md")).relative_to(ROOT))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Takes along what is linked outside docs/, and what that links to."""
    waiting = [repository_path(file.src_uri) for file in files.documentation_pages()]
    waiting += HOME
    for path in waiting:  # it grows meanwhile
        uri = site_path(path)
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            found = (p for p in linked(path, text) if (ROOT / p).is_file())
            waiting += [p for p in found if p not in waiting]
    config.nav = list(unfolded(config.nav or [], files, taken=set(named(config.nav or []))))
    return files


def named(nav: list[object]) -> Iterator[str]:
    """Pages that `nav` names."""
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(value, list):
            yield from named(value)
        else:
            yield str(value)


def unfolded(nav: list[object], files: Files, *, taken: set[str]) -> Iterator[object]:
    """`nav` with folders replaced by their pages that are not `taken`; `./` is all the rest."""
    for entry in nav:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(value, list):
            value = list(unfolded(value, files, taken=taken))
        elif str(value).endswith("/"):
            folder = str(value).removeprefix("./")
            pages = (file.src_uri for file in files.documentation_pages())
            value = sorted(p for p in pages if p.startswith(folder) and p not in taken)
            taken.update(value)
            if title is None:
                yield from value
                continue
        yield value if title is None else {title: value}


def on_page_markdown(markdown: str, page: Page, **_given: object) -> str:
    """Links from file to file become links from page to page."""
    here = repository_path(page.file.src_uri)

    def follow(match: re.Match[str]) -> str:
        path = os.path.normpath(Path(here).parent / match[2])
        if not (ROOT / path).exists():
            return match[0]
        target = site_path(first_page(path) if (ROOT / path).is_dir() else path)
        relative = os.path.relpath(target, PurePosixPath(page.file.src_uri).parent)
        return f"{match[1]}{relative}{match[3] or ''}{match[4]}"

    parts = _FENCE.split(markdown)
    text = "".join(p if p.startswith("```") else _LINK.sub(follow, p) for p in parts)
    text = _WORDS.sub(r"\1", text)
    return text.replace(COMMANDS, "\n".join(commands())) if COMMANDS in text else text


def commands() -> Iterator[str]:
    """Every command with its arguments and options, as the command line itself knows them."""
    for name, app in (("txlayer", build_app()), ("txlayer-spark", spark_app)):
        yield from described(name, typer.main.get_command(app))


def described(name: str, command: typer.core.TyperCommand | typer.core.TyperGroup) -> Iterator[str]:
    """One command and what is below it."""
    below = getattr(command, "commands", {})
    if not below:
        yield from (f"\n## `{name}`\n", _one_line(command.help), "")
        rows = [_row(p) for p in command.params if not getattr(p, "hidden", False)]
        if rows:
            yield from ("| | |", "| --- | --- |", *rows)
    for part, sub in sorted(below.items()):
        if not sub.hidden:
            yield from described(f"{name} {part}", sub)


def _row(parameter: typer.core.TyperArgument | typer.core.TyperOption) -> str:
    spelled = [] if parameter.param_type_name == "argument" else parameter.opts
    words = [", ".join(spelled), parameter.metavar or ("" if spelled else parameter.name)]
    left = f"`{' '.join(filter(None, words))}`".replace("|", "\\|")
    return f"| {left} | {_one_line(getattr(parameter, 'help', None))} |"


def _one_line(text: str | None) -> str:
    joined = " ".join((text or "").split()).replace("|", "\\|")
    return joined.replace("<", "&lt;")
