// Who was doing what when: one line per sequence, all on one clock.
//   queued  · · · ·   prefill ////   decode ████   verify ████ with a notch for every accepted draft
//   swapped - - - -   preempted, to be computed again – – –

import { broken, colourOf, colours, hatch, prepare } from "./paint.js";

export const ROW = 24; // pixels
export const AXIS = 22;
const BAR = 12;
const TICKS = [1e3, 5e3, 1e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 3e7, 6e7, 3e8];
const STEP_TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000];

/** view: {from, to, now} in microseconds, or in steps where bySteps; zero: where the axis begins to count. pending: a step that has begun, in a replay. */
export function drawTimeline(canvas, width, rows, view, pending) {
  const height = AXIS + Math.max(1, rows.length) * ROW;
  const context = prepare(canvas, width, height);
  const scale = (width - 2) / Math.max(1, view.to - view.from);
  const x = (value) => (value - view.from) * scale;
  drawAxis(context, width, height, view, x);
  const now = view.bySteps ? view.now + 1 : view.now;
  rows.forEach((sequence, index) => {
    const y = AXIS + index * ROW;
    drawSequence(context, sequence, y, view, x, now, width);
    if (pending) drawPending(context, sequence, y, view, x, pending);
  });
  if (x(now) >= 0 && x(now) <= width) {
    context.fillStyle = colours().ink;
    context.fillRect(Math.min(x(now), width - 1.5), AXIS - 4, 1.5, height - AXIS + 4);
  }
}

function drawAxis(context, width, height, view, x) {
  const span = view.to - view.from;
  const wanted = Math.max(2, width / 64);
  const ticks = view.bySteps ? STEP_TICKS : TICKS;
  const every = ticks.find((tick) => span / tick <= wanted) ?? ticks.at(-1);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const zero = view.zero ?? 0;
  for (let tick = Math.ceil((view.from - zero) / every) * every; tick <= view.to - zero; tick += every) {
    const at = x(tick + zero);
    context.fillStyle = colours().line;
    context.fillRect(at, AXIS - 4, 1, height - AXIS + 4);
    const label = view.bySteps ? `${tick}` : `${(tick / 1e6).toFixed(every < 1e4 ? 3 : every < 1e6 ? 1 : 0)} s`;
    const room = context.measureText(label).width;
    if (at + room < width && tick >= 0) {
      context.fillStyle = colours().muted;
      context.fillText(label, at + 3, AXIS / 2);
    }
  }
}

function drawSequence(context, sequence, y, view, x, now, width) {
  const [from, to] = view.bySteps ? ["s0", "s1"] : ["t0", "t1"];
  const segments = sequence.segments;
  let first = segments.length;
  while (first > 0 && segments[first - 1][to] >= view.from) first -= 1;
  let open = null; // the bar that is being made longer
  for (let index = first; index < segments.length; index += 1) {
    const segment = segments[index];
    const [x0, x1] = [Math.max(0, x(segment[from])), Math.min(width, x(segment[to]))];
    if (x0 > width) break;
    if (open && open.kind === segment.kind && x0 - open.x1 < 0.7 && segment.kind !== "verify") {
      open.x1 = x1;
      continue;
    }
    if (open) drawBar(context, sequence, open, y);
    open = { kind: segment.kind, x0, x1, accepted: segment.accepted };
  }
  if (open) drawBar(context, sequence, open, y);
  if (sequence.wait) {
    const [x0, x1] = [Math.max(0, x(sequence.wait[from])), Math.min(width, x(now))];
    if (x1 > x0) drawBar(context, sequence, { kind: sequence.wait.kind, x0, x1, accepted: 0 }, y);
  }
  const end = sequence.finishedAt == null || view.bySteps ? null : x(sequence.finishedAt);
  if (end != null && end >= 0 && end <= width) drawEnd(context, sequence, end, y);
}

function drawPending(context, sequence, y, view, x, step) {
  const row = step.rows.find((one) => one[0] === sequence.name);
  if (!row) return;
  const kind = row[4] ? "verify" : row[1] === "d" ? "decode" : "prefill";
  const [x0, x1] = view.bySteps ? [x(step.n), x(step.n + 1)] : [x(step.at), x(view.now)];
  drawBar(context, sequence, { kind, x0, x1, accepted: 0 }, y);
}

function drawBar(context, sequence, { kind, x0, x1, accepted }, y) {
  const middle = y + ROW / 2;
  const width = Math.max(1, x1 - x0);
  if (kind === "queued") return broken(context, x0, x1, middle, colours().muted, [2, 4]);
  if (kind === "preempted") return broken(context, x0, x1, middle, colours().bad, [9, 5]);
  if (kind === "swapped") return broken(context, x0, x1, middle, colourOf(sequence.number), [4, 4], 3);
  context.fillStyle = kind === "prefill" ? hatch(context, sequence.number) : colourOf(sequence.number);
  if (kind === "verify") {
    context.fillRect(x0, middle - BAR / 2 - 2, width > 3 ? width - 1 : width, BAR + 4);
    context.fillStyle = colours().panel;
    const gap = width / (accepted + 1);
    for (let n = 1; n <= accepted && gap > 2.5; n += 1) context.fillRect(x0 + n * gap - 1, middle - 3, 1.5, 6);
    return undefined;
  }
  context.fillRect(x0, middle - BAR / 2, width, BAR);
  return undefined;
}

function drawEnd(context, sequence, x, y) {
  const isBad = !["stop", "length"].includes(sequence.reason);
  context.fillStyle = isBad ? colours().bad : colours().ink;
  context.fillRect(x - 1, y + 4, 2, ROW - 8);
  if (!isBad) return;
  context.font = "bold 11px system-ui, sans-serif";
  context.fillText(sequence.reason, Math.max(2, x - context.measureText(sequence.reason).width - 4), y + ROW / 2 + 1);
}
