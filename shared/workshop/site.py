"""The course's website, for mkdocs (`make site`): which files are pages, and what their links become.

mkdocs wants all pages under one folder. Here they are where they belong, so this hook hands them over by themselves:
a README is a page as it is, a notebook becomes one with its outputs, and whatever else they link to or show is copied
beside. The live page is copied too, with its recordings, and a line of its own in a text shows one of them there:

    <!-- replay: waits at 3.5 -->      the scene "waits" in a frame, 3.5 seconds after its first request
"""

import base64
import html
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
LIVE_PAGE = ROOT / "shared" / "server" / "page"
LINK = re.compile(r"(?<!\\)\]\(([^)#\s]+)(#[^)\s]*)?\)")
SHOWN = re.compile(r"<(?:img|source)\b[^>]*?\b(?:src|srcset)=\"([^\"\s]+)\"")
REPLAY = re.compile(r"^<!-- replay: ([\w-]+) at ([\d.]+) -->$", re.MULTILINE)
FENCE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, list[str]]:
    """Heading of the navigation -> pages, as paths from the root of the repository."""
    notebooks = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb"))
    phases = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("phase*/README.md"))
    course = ["README", "glossary", "reading", "why_outputs_differ", "teaching"]
    return {
        "PageServe": ["README.md", "SECURITY.md", "CHANGELOG.md"],
        "The phases": phases,
        "The course": [f"notebooks/{name}.md" for name in course],
        "Notebooks": notebooks,
        "Behind it": [
            *sorted(f"shared/{p}README.md" for p in _readme_folders()),
            "shared/server/clients.md",
            "tests/README.md",
            "tests/mutation_score.md",
        ],
    }


def _readme_folders() -> list[str]:
    shared = ROOT / "shared"
    return [str(path.parent.relative_to(shared) / "x")[:-1] for path in shared.rglob("README.md")]


def source(page: str) -> str:
    """A page's text: a README as it is, a notebook with its outputs."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return markdown_of(json.loads(text)) if page.endswith(".ipynb") else text


def page_name(path: str) -> str:
    """The name under which a file of the repository is a page: notebooks are pages of text."""
    return path.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else path


def links(text: str) -> list[str]:
    """Where a text links to inside the repository, or what picture it shows; what stands in code is no link."""
    text = FENCE.sub("", text)
    found = [match[1] for pattern in (LINK, SHOWN) for match in pattern.finditer(text)]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def resolve(target: str, page: str) -> str:
    """A link's path from the root; a folder means its README, if it has one."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists():
        return posixpath.join(path, "README.md").removeprefix("./")
    return path


def linked(text: str, page: str) -> str:
    """The text with links to folders and notebooks turned into links to their pages."""

    def replace(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        there = page_name(resolve(target, page))
        return f"]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{anchor})"

    return _outside_code(text, lambda part: LINK.sub(replace, part))


def scenes() -> dict[str, str]:
    """Name -> title, of the recordings that the live page comes with."""
    index = json.loads((LIVE_PAGE / "recordings" / "index.json").read_text(encoding="utf-8"))
    return {scene["name"]: scene["title"] for scene in index}


def replayed(text: str, page: str) -> str:
    """The text with a frame in which a recording is replayed, where a line asks for one. Raises ValueError."""

    def replace(match: re.Match[str]) -> str:
        if match[1] not in scenes():
            raise ValueError(f"{page}: there is no scene {match[1]!r}; scenes: {', '.join(scenes())}")
        title = html.escape(scenes()[match[1]])
        there = posixpath.relpath("replay/index.html", posixpath.dirname(page) or ".")
        address = f"{there}#scene={match[1]}&amp;at={match[2]}"
        frame = f'<iframe class="replay" title="Recording: {title}" src="{address}" loading="lazy"></iframe>'
        return f'{frame}\n<p class="replay"><a href="{address}" target="_blank">{title}: in a window of its own</a></p>'

    return _outside_code(text, lambda part: REPLAY.sub(replace, part))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = FENCE.split(text)  # text, code, text, code, ...
    return "".join(part if place % 2 else change(part) for place, part in enumerate(parts))


def markdown_of(notebook: dict[str, Any]) -> str:
    """A notebook as text: cells in order, each code cell followed by what it printed and drew."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        png = base64.b64encode(base64.b64decode("".join(data["image/png"]))).decode()
        return f'<img alt="the picture that this cell draws" src="data:image/png;base64,{png}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text else ""


# -- what mkdocs calls ------------------------------------------------------------------------------


STYLE = """\
iframe.replay { width: 100%; height: min(46rem, 92vh); border: 1px solid var(--md-default-fg-color--lightest); }
p.replay { margin-top: 0; font-size: 0.7rem; }
"""


def on_config(config: Any) -> Any:
    config.nav = [{heading: [page_name(page) for page in listed]} for heading, listed in pages().items()]
    config.extra_css.append("replay/frame.css")
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """In place of the files of docs_dir: the pages, every other file that one of them links to, and the live page."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    listed = [page for names in pages().values() for page in names]
    others: set[str] = set()
    for page in listed:
        text = source(page)
        files.append(File.generated(config, page_name(page), content=replayed(linked(text, page), page)))
        others |= {resolve(target, page) for target in links(text)}
    there = {path: ROOT / path for path in sorted(others - set(listed))} | dict(live_page())
    for path, file in there.items():
        if file.is_file():
            files.append(File.generated(config, path, abs_src_path=str(file)))
    files.append(File.generated(config, "replay/frame.css", content=STYLE))
    return files


def live_page() -> Iterator[tuple[str, Path]]:
    """Path on the site -> file: the document in a folder, and beside it what it loads, as every server has them."""
    for file in sorted(LIVE_PAGE.rglob("*")):
        name = file.relative_to(LIVE_PAGE).as_posix()
        yield (f"replay/{name}" if name == "index.html" else f"replay/page/{name}"), file
