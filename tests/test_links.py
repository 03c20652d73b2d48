"""Every relative link of every text and notebook leads somewhere; so does every heading that one points at."""

import json
import re
from pathlib import Path

import pytest

from shared.workshop.site import FENCE, linked, links, markdown_of, pages, resolve
from shared.workshop.trees import ROOT

LEFT_OUT = {"site", "build", "results"}  # and hidden folders
TEXTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "*.ipynb")
    for path in ROOT.rglob(pattern)
    if not any(part in LEFT_OUT or part.startswith(".") for part in path.relative_to(ROOT).parts)
)


def text_of(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return markdown_of(json.loads(text)) if page.endswith(".ipynb") else text


def anchors(text: str) -> set[str]:
    """The headings of a text, as they are linked to."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_every_relative_link_leads_to_a_file(page: str) -> None:
    for target in links(text_of(page)):
        assert (ROOT / resolve(target, page)).exists(), f"{page} links to {target}, which is not there"


@pytest.mark.parametrize("page", TEXTS)
def test_every_linked_heading_is_there(page: str) -> None:
    text = FENCE.sub("", text_of(page))
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
        there = text_of(resolve(target, page) if target else page)
        assert anchor in anchors(there), f"{page} links to {target}#{anchor}, and there is no such heading"


def test_every_page_of_the_site_is_there_and_every_text_of_the_course_is_a_page() -> None:
    listed = [page for names in pages().values() for page in names]
    assert len(listed) == len(set(listed))
    for page in listed:
        assert (ROOT / page).is_file(), page
    own = {page for page in TEXTS if page.startswith(("phase", "notebooks/", "shared/"))}
    assert own <= set(listed)


def test_links_to_folders_and_notebooks_become_links_to_pages_and_code_stays() -> None:
    text = "[2](../phase02_iteration_scheduling) [n](../notebooks/README.md#x) `[no](link)` [web](https://example.org)"
    assert linked(text, "phase01_sequential/README.md") == (
        "[2](../phase02_iteration_scheduling/README.md) [n](../notebooks/README.md#x) `[no](link)` "
        "[web](https://example.org)"
    )
    assert linked("[1](01_sequential.ipynb)", "notebooks/README.md") == "[1](01_sequential.md)"


def test_a_notebook_becomes_a_page_with_its_outputs() -> None:
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title"]},
            {
                "cell_type": "code",
                "source": ["print(1)"],
                "outputs": [
                    {"output_type": "stream", "text": ["1\n"]},
                    {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}},
                ],
            },
        ]
    }
    page = markdown_of(notebook)
    assert page.startswith("# Title\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n<img ")
    assert 'src="data:image/png;base64,aGk="' in page
    assert Path(ROOT / "mkdocs.yml").read_text(encoding="utf-8").count("shared/workshop/site.py") == 2
