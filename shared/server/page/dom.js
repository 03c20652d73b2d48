// Elements and text: whatever a request says becomes a text node, never markup.

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text nodes. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** Change a node's text only where it differs: a screen reader hears changes, and layout costs time. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Said once by a screen reader, at its own pace. */
export function speak(text) {
  setText(byId("spoken"), text);
}

/** A hint beside the pointer or a focused cell; null hides it. */
export function showTip(lines, x, y) {
  const tip = byId("tip");
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map((line) => el("div", {}, line)));
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? y - height - 10 : y + 18}px`;
}

export const seconds = (us) => (us == null ? "–" : us < 1e6 ? `${Math.round(us / 1e3)} ms` : `${(us / 1e6).toFixed(2)} s`);
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
