// One engine's picture: figures, timeline, the step's batch, blocks, what happened. Draws a model; changes nothing.

import { describeBatch, drawBatch, kindOf, tokensOf } from "./batch.js";
import { BlockGrid } from "./blocks.js";
import { el, plural, seconds, setText, showTip } from "./dom.js";
import { Figures } from "./figures.js";
import { colourOf } from "./paint.js";
import { AXIS, drawTimeline } from "./timeline.js";

const MAX_ROWS = 64;
const KEPT_ROWS = 8; // finished requests stay in sight until there are this many younger ones
const WORDS_EVERY_MS = 120; // figures and tables; pictures are drawn with every frame

/** Milliseconds that frames took to draw, the last ones; for whoever wants to know, and for the tests. */
export const frames = [];

const LEGEND = [
  ["queued", "queued"], ["prefill", "prefill"], ["decode", "decode"], ["verify", "drafts verified, a notch for each right one"],
  ["swapped", "swapped out"], ["preempted", "preempted, to be computed again"],
];

export class Board {
  constructor(title) {
    this.model = null;
    this.figures = new Figures();
    this.blocks = new BlockGrid("block");
    this.swap = new BlockGrid("host block");
    this.rows = new Map(); // sequence name -> its table row
    this.widest = 1; // tokens of the largest step so far
    this.peers = []; // models shown beside this one
    this.hasSwapped = false;
    this.#build(title);
    new ResizeObserver(() => this.touch()).observe(this.node);
  }

  /** Draw all of it in the next frame. */
  touch() {
    this.drawn = this.worded = null;
    this.wordsAt = -Infinity;
    this.blocks.isDirty = this.swap.isDirty = true;
  }

  show(model) {
    this.model = model;
    this.widest = 1;
    this.hasSwapped = false;
    this.rows.clear();
    this.body.replaceChildren();
    this.touch();
  }

  /** view: {from, to, now, bySteps}; pending: in a replay, the step that has begun. */
  frame(view, pending = null) {
    const model = this.model;
    const key = `${model.version} ${view.from} ${view.to} ${view.now} ${pending?.n}`;
    if (key === this.drawn && key === this.worded && !this.blocks.isDirty && !this.swap.isDirty) return;
    const started = performance.now();
    if (key !== this.worded && started - this.wordsAt > WORDS_EVERY_MS) {
      this.#words(view, pending);
      this.worded = key;
    }
    this.#timeline(view, pending);
    this.#batch(pending ?? model.last);
    if (model.version !== this.version || this.blocks.isDirty || this.swap.isDirty) this.#pools();
    this.version = model.version;
    this.drawn = key;
    frames.push(performance.now() - started);
    if (frames.length > 600) frames.splice(0, 300);
  }

  #build(title) {
    this.title = el("h2", {}, title);
    this.timeline = el("canvas", { "aria-hidden": "true", class: "timeline" });
    this.timeCell = el("th", { class: "time", scope: "col" }, el("span", { class: "unseen" }, "Timeline"));
    this.body = el("tbody");
    this.table = el(
      "table", { class: "requests" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Request"), this.timeCell, el("th", { scope: "col" }, "State"),
        el("th", { scope: "col", class: "number" }, "Tokens"), el("th", { scope: "col", class: "number late" }, "First token"))),
      this.body,
    );
    this.none = el("p", { class: "muted none" }, "No request yet.");
    this.options = el("div", { class: "options" });
    this.batch = el("canvas", { class: "batch", "aria-hidden": "true" });
    this.batchText = el("p", { class: "batch-text" });
    this.batch.addEventListener("pointermove", (event) => this.#pointAtBatch(event));
    this.batch.addEventListener("pointerleave", () => showTip(null));
    this.poolText = el("p", { class: "muted" });
    this.swapText = el("p", { class: "muted" });
    this.swapBox = el("div", { class: "swap" }, el("h3", {}, "Host memory for swapping"), this.swap.node, this.swapText);
    this.noBlocks = el("p", { class: "muted" });
    this.log = el("ol", { class: "log", role: "log", "aria-live": "off", tabindex: "0", "aria-label": "What happened" });
    this.node = el(
      "section", { class: "board" }, this.title, this.figures.node,
      el("div", { class: "columns" },
        el("div", { class: "panel wide" },
          el("div", { class: "panel-head" }, el("h3", {}, "Requests on one clock"), this.options),
          el("div", { class: "table-box" }, this.table, this.timeline), this.none, legend()),
        el("div", { class: "panel wide" }, el("h3", {}, "The step’s batch: one forward pass"), this.batch, this.batchText),
        el("div", { class: "panel" }, el("h3", {}, "K/V blocks"), this.noBlocks, this.blocks.node, this.poolText, blockLegend(), this.swapBox),
        el("div", { class: "panel" }, el("h3", {}, "What happened"), this.log)),
    );
  }

  #words(view, pending) {
    const model = this.model;
    this.wordsAt = performance.now();
    this.figures.draw(model, view.bySteps ? model.now : view.now, this.peers);
    this.shown = this.#visible(view);
    this.#table();
    this.none.hidden = this.shown.length > 0;
    this.table.parentElement.hidden = this.shown.length === 0;
    const step = pending ?? model.last;
    setText(this.batchText, describeBatch(step, model.engine.budget_tokens, this.isCut));
    const hasBlocks = model.pool.size > 0;
    this.node.classList.toggle("has-blocks", hasBlocks);
    setText(this.noBlocks, hasBlocks ? "" : "This engine keeps a cache of its own for every sequence; memory in blocks comes with phase 6.");
    this.swapBox.hidden = !model.swap.size;
    if (hasBlocks) setText(this.poolText, `${this.blocks.summary(model.pool)}; ${plural(model.engine.block_size, "token")} each`);
    if (model.swap.size) setText(this.swapText, this.swap.summary(model.swap));
    this.#logLines(view);
  }

  #visible(view) {
    const all = [...this.model.sequences.values()];
    const from = view.bySteps ? -Infinity : view.from;
    const recent = new Set(all.slice(-KEPT_ROWS));
    return all.filter((one) => !one.isOver || one.finishedAt >= from || recent.has(one)).slice(-MAX_ROWS);
  }

  #table() {
    const wanted = this.shown.map((sequence) => sequence.name);
    for (const [name, row] of this.rows) {
      if (wanted.includes(name)) continue;
      row.node.remove();
      this.rows.delete(name);
    }
    this.shown.forEach((sequence, index) => {
      let row = this.rows.get(sequence.name);
      if (!row) this.rows.set(sequence.name, (row = makeRow(sequence)));
      if (this.body.children[index] !== row.node) this.body.insertBefore(row.node, this.body.children[index] ?? null);
      fillRow(row, sequence, this.model);
    });
  }

  #timeline(view, pending) {
    if (!this.shown.length) return;
    const { offsetLeft: left, offsetWidth: width } = this.timeCell;
    this.timeline.style.left = `${left}px`;
    drawTimeline(this.timeline, width, this.shown, view, pending);
  }

  #batch(step) {
    if (step) this.widest = Math.max(this.widest, tokensOf(step));
    const width = this.batch.parentElement.clientWidth - 28;
    const { places, isCut } = drawBatch(this.batch, width, this.model, step, Math.max(8, this.widest));
    this.places = places;
    this.isCut = isCut;
  }

  #pools() {
    const { pool, swap, engine } = this.model;
    const width = this.blocks.node.clientWidth;
    if (pool.size && width) this.blocks.draw(width, pool, this.model, engine.block_size);
    else this.blocks.isDirty = false;
    this.blocks.node.hidden = !pool.size;
    this.hasSwapped ||= swap.used > 0;
    this.swap.node.hidden = !this.hasSwapped;
    if (this.hasSwapped && width) this.swap.draw(width, swap, this.model, engine.block_size);
    else this.swap.isDirty = false;
  }

  #logLines(view) {
    const lines = this.model.log.slice(-40);
    const key = `${lines[0]?.at} ${lines.length} ${lines.at(-1)?.at} ${lines.at(-1)?.text} ${this.model.own.size}`;
    if (key === this.logged) return;
    this.logged = key;
    const time = (at) => el("span", { class: "when" }, `${(at / 1e6).toFixed(2)} s`);
    this.log.replaceChildren(...lines.map((line) => el("li", {}, time(line.at - (view.zero ?? 0)), ` ${line.name ? this.model.label(line.name) : ""} ${line.text}`)));
    this.log.scrollTop = this.log.scrollHeight;
  }

  #pointAtBatch(event) {
    const x = event.clientX - this.batch.getBoundingClientRect().left;
    const place = this.places?.find((one) => x >= one.x0 && x < one.x1);
    if (!place) return showTip(null);
    const [name, , start, num, drafts, fresh] = place.row;
    const lines = [`${this.model.label(name)}: ${kindOf(place.row)}`, `positions ${start} to ${start + num + drafts - 1}`];
    if (drafts) lines.push(`${plural(drafts, "draft")}, ${Math.max(0, fresh - 1)} right`);
    return showTip([...lines, `${plural(fresh, "new token")}`], event.clientX, event.clientY);
  }
}

function makeRow(sequence) {
  const swatch = el("span", { class: "swatch", "data-number": sequence.number });
  const name = el("span", { class: "name", title: sequence.name });
  const [state, tokens, first] = [el("td", { class: "state" }), el("td", { class: "number" }), el("td", { class: "number late" })];
  const node = el("tr", {}, el("th", { scope: "row" }, swatch, name), el("td", { class: "time" }), state, tokens, first);
  return { node, swatch, name, state, tokens, first };
}

function fillRow(row, sequence, model) {
  row.swatch.style.background = colourOf(sequence.number);
  setText(row.name, model.label(sequence.name));
  const isBad = sequence.isOver && !["stop", "length"].includes(sequence.reason);
  const state = isBad ? sequence.reason : sequence.state === "running" && !sequence.output ? "prefill" : sequence.state;
  setText(row.state, state);
  row.node.dataset.state = sequence.state;
  row.node.classList.toggle("bad", isBad);
  setText(row.tokens, `${sequence.output}`);
  setText(row.first, seconds(sequence.ttft));
}

function legend() {
  const items = LEGEND.map(([kind, text]) => el("li", {}, el("i", { class: `mark ${kind}` }), text));
  return el("ul", { class: "legend", "aria-label": "How to read the timeline" }, ...items);
}

function blockLegend() {
  const items = [["own", "one owner’s"], ["shared", "shared"], ["kept", "cached"], ["free", "free"]];
  return el("ul", { class: "legend blocks-only" }, ...items.map(([kind, text]) => el("li", {}, el("i", { class: `cell ${kind}` }), text)));
}
