"""The course's website: built by mkdocs from the texts as they are, complete, and readable without a network."""

import re
from pathlib import Path

import pytest

from shared.workshop.site import FENCE, LIVE_PAGE, REPLAY, page_name, pages, replayed, scenes, source

PAGES = [page for listed in pages().values() for page in listed]
LOADED = re.compile(r"<(?:script|img|source|iframe|link)\b[^>]*?\b(?:src|srcset|href)=\"?([^\"\s>]+)", re.DOTALL)


def built(site: Path, page: str) -> Path:
    html = site / Path(page_name(page)).with_suffix(".html")
    return html.with_name("index.html") if html.stem == "README" else html


@pytest.mark.parametrize("page", PAGES)
def test_whatever_a_page_loads_is_a_file_of_the_site(page: str, site: Path) -> None:
    html = built(site, page)
    loaded = [
        address for address in LOADED.findall(html.read_text(encoding="utf-8")) if not address.startswith("data:")
    ]
    assert len(loaded) > 3
    for address in loaded:
        assert "//" not in address, f"{page} loads {address}"
        path = html.parent / re.split(r"[#?]", address)[0]
        assert path.exists(), f"{page} loads {address}, which the site does not have"


def test_the_live_page_is_copied_whole_and_its_recordings_with_it(site: Path) -> None:
    for file in (file for file in LIVE_PAGE.rglob("*") if file.is_file() and file.name != "index.html"):
        assert (site / "replay" / "page" / file.relative_to(LIVE_PAGE)).read_bytes() == file.read_bytes()
    assert (site / "replay" / "index.html").read_bytes() == (LIVE_PAGE / "index.html").read_bytes()
    assert not (site / "replay" / "page" / "index.html").exists()


def test_every_scene_is_shown_in_some_text_and_every_line_that_asks_for_one_names_one() -> None:
    asked = {match[1] for page in PAGES for match in REPLAY.finditer(FENCE.sub("", source(page)))}
    assert asked == set(scenes())


def test_a_line_in_a_text_becomes_a_frame_and_the_same_line_in_code_stays() -> None:
    text = "before\n<!-- replay: waits at 1.2 -->\nafter\n```\n<!-- replay: waits at 1 -->\n```\n"
    page = replayed(text, "phase09_preemption/README.md")
    assert 'src="../replay/index.html#scene=waits&amp;at=1.2"' in page
    assert 'title="Recording: Four requests, two very different waits"' in page
    assert page.endswith("after\n```\n<!-- replay: waits at 1 -->\n```\n")


def test_a_line_that_asks_for_a_scene_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"README.md: there is no scene 'no-such'; scenes: waits, caching"):
        replayed("<!-- replay: no-such at 1 -->\n", "README.md")
