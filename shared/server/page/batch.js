// One step's packed batch: whose tokens ran together, and how much of the budget they used.

import { plural, seconds } from "./dom.js";
import { colourOf, colours, hatch, prepare } from "./paint.js";

const HEIGHT = 46;
export const kindOf = (row) => (row[4] ? "verify" : row[1] === "d" ? "decode" : "prefill");
export const tokensOf = (step) => step.rows.reduce((sum, row) => sum + row[3] + row[4], 0);

/** Draws `step`, and returns where each row is: {x0, x1, row}. widest: tokens at full width, without a budget. */
export function drawBatch(canvas, width, model, step, widest) {
  const context = prepare(canvas, width, HEIGHT);
  const budget = model.engine.budget_tokens;
  const total = step ? tokensOf(step) : 0;
  const whole = Math.max(total, budget ? niceWidth(total, budget) : widest, 1);
  const scale = (width - 2) / whole;
  context.fillStyle = colours().free;
  context.fillRect(0, 0, width, HEIGHT);
  const places = [];
  let at = 1;
  for (const row of step?.rows ?? []) {
    const end = at + (row[3] + row[4]) * scale;
    drawRow(context, model, row, at, end, scale);
    places.push({ x0: at, x1: end, row });
    at = end;
  }
  context.strokeStyle = colours().line;
  context.strokeRect(0.5, 0.5, width - 1, HEIGHT - 1);
  return { places, isCut: Boolean(budget) && whole < budget };
}

/** A decode batch is a sliver of a large budget: then the bar shows an eighth of it, or a quarter, a half. */
function niceWidth(total, budget) {
  for (const share of [8, 4, 2]) if (total <= budget / share) return budget / share;
  return budget;
}

function drawRow(context, model, row, x0, x1, scale) {
  const [name, , , num, drafts, fresh] = row;
  const number = model.sequences.get(name)?.number ?? 0;
  const kind = kindOf(row);
  context.fillStyle = kind === "prefill" ? hatch(context, number) : colourOf(number);
  context.fillRect(x0, 1, x1 - x0, HEIGHT - 2);
  if (drafts) {
    const right = x0 + (num + Math.max(0, fresh - 1)) * scale; // up to here the guesses were right
    context.fillStyle = colours().panel;
    context.globalAlpha = 0.65;
    context.fillRect(right, 1, x1 - right, HEIGHT - 2);
    context.globalAlpha = 1;
  }
  context.fillStyle = colours().panel;
  context.fillRect(x1 - 1, 1, 1, HEIGHT - 2);
  const label = `${model.label(name)}${num + drafts > 1 ? ` · ${num}${drafts ? `+${drafts}` : ""}` : ""}`;
  context.font = "600 13px system-ui, sans-serif";
  context.textBaseline = "middle";
  const room = context.measureText(label).width + 8;
  if (room > x1 - x0) return;
  const isPlain = kind === "decode";
  if (!isPlain) {
    context.fillStyle = colours().panel;
    context.fillRect(x0 + 3, HEIGHT / 2 - 10, room, 20);
  }
  context.fillStyle = !isPlain ? colours().ink : colours().isDark ? "#0b0e13" : "#ffffff";
  context.fillText(label, x0 + 7, HEIGHT / 2 + 1);
}

/** The same in words. */
export function describeBatch(step, budget, isCut) {
  if (!step) return "No step yet.";
  const count = { prefill: 0, decode: 0, verify: 0 };
  const tokens = { prefill: 0, decode: 0, verify: 0 };
  for (const row of step.rows) {
    count[kindOf(row)] += 1;
    tokens[kindOf(row)] += row[3] + row[4];
  }
  const parts = [];
  if (count.decode) parts.push(`${plural(count.decode, "decode")}`);
  if (count.verify) parts.push(`${count.verify} verifying ${plural(tokens.verify - count.verify, "draft")}`);
  if (count.prefill) parts.push(`${tokens.prefill} prompt tokens of ${count.prefill}`);
  const total = tokensOf(step);
  const use = budget ? `${total} of ${budget} tokens${isCut ? " (the bar shows a part of the budget)" : ""}` : plural(total, "token");
  return `Step ${step.n}: ${parts.join(", ")}; ${use}; ${seconds(step.took)}`;
}
