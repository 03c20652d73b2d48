"""A page of another site in a real Chromium: whatever it makes the browser send, the server answers none of it."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from shared.registry import newest_phase
from tests.helpers import wait_until
from tests.server_helpers import Served, open_server
from tests.test_browser import browser  # noqa: F401 - a fixture

SITE = b"""<!doctype html><title>elsewhere</title>
<form method="post" enctype="text/plain" target="frame">
<input name="{&quot;prompt&quot;:&quot;a" value="&quot;}"></form>
<iframe name="frame"></iframe>"""
ATTACK = """async (target) => {
  const body = '{"prompt": "abc", "max_tokens": 4}';
  const told = async (promise) => { try { const r = await promise; return r.type === "opaque" ? "" : await r.text(); }
                                    catch { return ""; } };
  const loaded = (tag, path) => new Promise((resolve) => {
    const element = document.createElement(tag);
    element.onload = () => resolve(tag === "iframe" ? "" : "loaded");  // an iframe loads its error, too
    element.onerror = () => resolve("");
    setTimeout(() => resolve("still loading"), 5000);  // /docs, where it is let in, waits for a CDN
    element.src = target + path;
    document.body.append(element);
  });
  const json = { "Content-Type": "application/json" };
  const seen = await Promise.all([
    told(fetch(target + "/metrics")),
    told(fetch(target + "/v1/models", { mode: "no-cors" })),
    told(fetch(target + "/events", { mode: "no-cors", headers: { Accept: "text/event-stream" } })),
    told(fetch(target + "/generate", { method: "POST", mode: "no-cors", body })),
    told(fetch(target + "/generate", { method: "POST", mode: "no-cors", body: new Blob([body]) })),
    told(fetch(target + "/generate", { method: "POST", mode: "no-cors", body: new URLSearchParams({ prompt: "a" }) })),
    told(fetch(target + "/v1/completions", { method: "POST", headers: json, body })),
    loaded("img", "/metrics"), loaded("script", "/page/main.js"), loaded("iframe", "/"), loaded("iframe", "/docs"),
  ]);
  const events = new EventSource(target + "/events");
  seen.push(await new Promise((resolve) => {
    events.onopen = () => resolve("open");
    events.onerror = () => resolve("");
  }));
  events.close();
  navigator.sendBeacon(target + "/generate", new Blob([body], { type: "text/plain" }));
  document.forms[0].action = target + "/generate";
  document.forms[0].submit();
  return seen;
}"""
NUM_SENT = 14  # one of each, the preflight in the place of what it asks leave for


class Elsewhere(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(SITE)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(params=["localhost", "127.0.0.1"], ids=["another site", "another port"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{request.param}:{server.server_port}"
        server.shutdown()


def answers(served: Served) -> Counter[int]:
    """Status -> how many answers had it so far."""
    found: Counter[int] = Counter()
    for metric in served.app.state.service.metrics.http_requests.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                found[int(sample.labels["status"])] += int(sample.value)
    return found


def test_a_page_from_elsewhere_gets_nothing_done_and_nothing_told(browser: Any, elsewhere: str) -> None:  # noqa: F811
    with open_server(newest_phase()) as served:
        with closing(browser.new_page()) as page:
            page.goto(elsewhere)
            seen = page.evaluate(ATTACK, served.url)
            assert not any(seen), "an answer could be read"
            wait_until(lambda: answers(served).total() >= NUM_SENT, 10)
        assert set(answers(served)) == {403}
        assert served.engine.stats().prompt_tokens == 0
        assert not served.app.state.service.live.is_watched
