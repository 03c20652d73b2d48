"""The course's website, for mkdocs (`make site`): which files are pages, and what their links become.

mkdocs wants all pages under one folder. Here they are where they belong, so this hook hands them over by themselves:
a README is a page as it is, a notebook becomes one with its outputs, and whatever else they link to is copied beside.
"""

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"(?<!\\)\]\(([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, list[str]]:
    """Heading of the navigation -> pages, as paths from the root of the repository."""
    notebooks = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb"))
    phases = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("phase*/README.md"))
    course = ["README", "glossary", "reading", "why_outputs_differ", "teaching"]
    return {
        "PageServe": ["README.md", "CHANGELOG.md"],
        "The phases": phases,
        "The course": [f"notebooks/{name}.md" for name in course],
        "Notebooks": notebooks,
        "Behind it": [*sorted(f"shared/{p}README.md" for p in _readme_folders()), "tests/README.md"],
    }


def _readme_folders() -> list[str]:
    shared = ROOT / "shared"
    return [str(path.parent.relative_to(shared) / "x")[:-1] for path in shared.rglob("README.md")]


def source(page: str) -> str:
    """A page's text: a README as it is, a notebook with its outputs; links as `linked` makes them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return linked(markdown_of(json.loads(text)) if page.endswith(".ipynb") else text, page)


def page_name(path: str) -> str:
    """The name under which a file of the repository is a page: notebooks are pages of text."""
    return path.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else path


def links(text: str) -> list[str]:
    """Where a text links to inside the repository, as written; what stands in code is no link."""
    found = [match[1] for match in LINK.finditer(FENCE.sub("", text))]
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

    parts = FENCE.split(text)  # text, code, text, code, ...
    return "".join(part if place % 2 else LINK.sub(replace, part) for place, part in enumerate(parts))


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


def on_config(config: Any) -> Any:
    config.nav = [{heading: [page_name(page) for page in listed]} for heading, listed in pages().items()]
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """In place of the files of docs_dir: the pages, and every other file that one of them links to."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    listed = [page for names in pages().values() for page in names]
    others: set[str] = set()
    for page in listed:
        text = (ROOT / page).read_text(encoding="utf-8")
        raw = markdown_of(json.loads(text)) if page.endswith(".ipynb") else text
        files.append(File.generated(config, page_name(page), content=linked(raw, page)))
        others |= {resolve(target, page) for target in links(raw)}
    for path in sorted(others - set(listed)):
        if (ROOT / path).is_file():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files
