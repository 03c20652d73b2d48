// What the page begins with: tabs, theme, one loop that draws whatever can be seen.

import { frames } from "./board.js";
import { byId, setText, showTip } from "./dom.js";
import { Live } from "./live.js";
import { forgetColours } from "./paint.js";
import { Player } from "./player.js";

byId("stuck").remove();
const THEMES = ["auto", "light", "dark"];
const wantsDark = matchMedia("(prefers-color-scheme: dark)");
const tabs = [byId("tab-live"), byId("tab-recordings")];
const live = new Live();
const player = new Player();

globalThis.pageserve = { frames, live, player };

function choose(tab, isByKey = false) {
  showTip(null);
  for (const one of tabs) {
    const isIt = one === tab;
    one.setAttribute("aria-selected", String(isIt));
    one.tabIndex = isIt ? 0 : -1;
    byId(one.getAttribute("aria-controls")).hidden = !isIt;
  }
  if (isByKey) tab.focus();
  live.board.touch();
  player.touch();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  setText(byId("theme"), `Theme: ${name}`);
  forgetColours();
  live.board.touch();
  player.touch();
}

function draw(last) {
  return (time) => {
    if (!byId("live-body").hidden && !byId("live").hidden) live.frame();
    if (!byId("recordings").hidden) player.frame(time - last);
    requestAnimationFrame(draw(time));
  };
}

for (const tab of tabs) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    choose(tabs.filter((one) => !one.hidden).find((one) => one !== tab) ?? tab, true);
  });
}
byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("pageserve-theme", next);
  setTheme(next);
});
wantsDark.addEventListener("change", () => setTheme(document.documentElement.dataset.theme));
const isFramed = window !== window.parent; // in a page of the course: the scene alone, in that page's theme
document.documentElement.toggleAttribute("data-framed", isFramed);
const kept = isFramed ? null : localStorage.getItem("pageserve-theme");
setTheme(THEMES.includes(kept) ? kept : "auto");

const asked = new URLSearchParams(location.hash.slice(1));
const [wanted, scene, at] = [asked.get("replay"), asked.get("scene"), Number(asked.get("at")) || 0];
const isLive = !isFramed && (await live.open());
if (!isLive) {
  tabs[0].hidden = true;
  setText(byId("which"), "recordings");
}
choose(isLive && !wanted && !scene ? tabs[0] : tabs[1]);
requestAnimationFrame(draw(performance.now()));
await player.open({ wanted, scene, at });
