// The engine in numbers, each with a small curve of its last values where it has some.

import { el, percent, seconds, setText } from "./dom.js";
import { colours, prepare } from "./paint.js";

const CURVE = { width: 92, height: 26 };

const FIGURES = [
  { key: "rate", name: "tokens/s", curve: (model) => model.rates, value: (model, now) => model.rate(now).toFixed(model.rate(now) < 10 ? 1 : 0) },
  { key: "ttft", name: "first token", curve: (model) => model.ttfts, value: (model) => seconds(model.ttfts.at(-1)) },
  { key: "itl", name: "token gap", curve: (model) => model.gaps, value: (model) => seconds(model.gaps.at(-1)) },
  { key: "running", name: "running", value: (model) => `${model.running}${model.engine.max_batch_size ? ` of ${model.engine.max_batch_size}` : ""}` },
  { key: "waiting", name: "queue", value: (model) => `${model.waiting}` },
  { key: "blocks", name: "blocks", has: (model) => model.pool.size, value: (model) => percent(model.pool.used, model.pool.size) },
  { key: "swapped", name: "swapped", has: (model) => model.swap.size, value: (model) => `${model.swapped}` },
  { key: "preempted", name: "preemptions", has: (model) => model.preempted, value: (model) => `${model.preempted}` },
  { key: "hits", name: "prefix hits", has: (model) => model.engine.has_prefix_cache, value: (model) => percent(model.hits.found, model.hits.asked) },
  { key: "drafts", name: "drafts right", has: (model) => model.drafts.made, value: (model) => percent(model.drafts.right, model.drafts.made) },
  { key: "finished", name: "finished", value: (model) => `${model.finished}` },
];

export class Figures {
  constructor() {
    this.node = el("dl", { class: "figures" });
    this.tiles = FIGURES.map((figure) => {
      const value = el("dd", { "data-figure": figure.key }, "–");
      const curve = figure.curve ? el("canvas", { "aria-hidden": "true" }) : null;
      const tile = el("div", {}, el("dt", {}, figure.name), value, ...(curve ? [curve] : []));
      this.node.append(tile);
      return { figure, value, curve, tile };
    });
  }

  /** peers: models that are shown beside this one; what one of them has gets its place in all. */
  draw(model, now, peers) {
    for (const { figure, value, curve, tile } of this.tiles) {
      const has = (one) => !figure.has || Boolean(figure.has(one));
      tile.hidden = !has(model) && !peers.some(has);
      if (tile.hidden) continue;
      setText(value, has(model) ? figure.value(model, now) : "–");
      if (curve) drawCurve(curve, figure.curve(model));
    }
  }
}

function drawCurve(canvas, values) {
  const { width, height } = CURVE;
  const context = prepare(canvas, width, height);
  if (values.length < 2) return;
  const most = Math.max(...values) || 1;
  context.strokeStyle = colours().accent;
  context.lineWidth = 1.5;
  context.beginPath();
  values.forEach((value, index) => {
    const x = (index / (values.length - 1)) * (width - 2) + 1;
    context.lineTo(x, height - 2 - (value / most) * (height - 4));
  });
  context.stroke();
}
