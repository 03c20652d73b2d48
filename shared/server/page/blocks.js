// A pool of K/V blocks as a grid. A block has its owner's colour; several owners share it as stripes with a ring.

import { el, plural, setText, showTip } from "./dom.js";
import { colourOf, colours, prepare } from "./paint.js";

const MAX_CELL = 22;
const MIN_CELL = 5;

export class BlockGrid {
  /** what: "block" or "host block". Draws into a canvas that takes the keyboard, too. */
  constructor(what) {
    this.what = what;
    this.canvas = el("canvas", {
      class: "grid", tabindex: "0", role: "application",
      "aria-roledescription": "grid of blocks", "aria-label": `${what}s; arrow keys move from block to block`,
    });
    this.spoken = el("p", { class: "unseen", role: "status" });
    this.node = el("div", { class: "grid-box" }, this.canvas, this.spoken);
    this.cursor = null; // the block under the pointer, or under the keyboard's cursor
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#choose(null));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("blur", () => this.#choose(null));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.isDirty = true;
  }

  /** blockSize: tokens per block. */
  draw(width, pool, model, blockSize) {
    Object.assign(this, { pool, model, blockSize, width });
    this.#layOut(width, pool.size);
    const { cell, columns } = this;
    const gap = cell > 8 ? 2 : 1;
    const context = prepare(this.canvas, width, Math.ceil(pool.size / columns) * cell);
    const held = this.cursor == null ? null : pool.owners[this.cursor][0];
    const marked = held && new Set(pool.tables.get(held));
    for (let block = 0; block < pool.size; block += 1) {
      const x = (block % columns) * cell;
      const y = Math.floor(block / columns) * cell;
      this.#drawBlock(context, block, x, y, cell - gap, marked);
    }
    this.isDirty = false;
  }

  #layOut(width, size) {
    let cell = MAX_CELL;
    while (cell > MIN_CELL && Math.ceil(size / Math.floor(width / cell)) * cell > Math.max(180, width * 0.55)) cell -= 1;
    this.cell = cell;
    this.columns = Math.max(1, Math.floor(width / cell));
  }

  #drawBlock(context, block, x, y, side, marked) {
    const owners = this.pool.owners[block];
    if (!owners.length) {
      const isCached = this.pool.cached.has(block);
      context.fillStyle = isCached ? colours().cached : colours().free;
      context.fillRect(x, y, side, side);
      if (isCached && side > 6) {
        context.fillStyle = colours().panel;
        context.fillRect(x + side * 0.34, y + side * 0.34, side * 0.32, side * 0.32);
      }
    } else {
      const share = side / Math.min(owners.length, 4);
      owners.slice(0, 4).forEach((name, place) => {
        context.fillStyle = this.#colour(name);
        context.fillRect(x + place * share, y, share, side);
      });
      if (owners.length > 1 && side > 5) {
        context.strokeStyle = colours().ink;
        context.lineWidth = 1.5;
        context.strokeRect(x + 0.75, y + 0.75, side - 1.5, side - 1.5);
      }
    }
    if (marked?.has(block) || block === this.cursor) {
      context.strokeStyle = block === this.cursor ? colours().accent : colours().ink;
      context.lineWidth = block === this.cursor ? 3 : 2;
      context.strokeRect(x, y, side, side);
    }
  }

  #colour(name) {
    return colourOf(this.model.sequences.get(name)?.number ?? 0);
  }

  /** What is to be known of a block, in lines. */
  describe(block) {
    const owners = this.pool.owners[block];
    const title = `${this.what} ${block}`;
    if (!owners.length) return [title, this.pool.cached.has(block) ? "cached: nobody holds it, its contents are kept" : "free"];
    const lines = [title, `ref count ${owners.length}`];
    for (const name of owners.slice(0, 6)) {
      const table = this.pool.tables.get(name);
      const place = table.indexOf(block);
      const tokens = `tokens ${place * this.blockSize}–${(place + 1) * this.blockSize - 1}`;
      lines.push(`${this.model.label(name)}: ${tokens}, place ${place} of its table [${shortened(table)}]`);
    }
    if (owners.length > 6) lines.push(`and ${owners.length - 6} more`);
    return lines;
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.cell);
    const block = Math.floor((event.clientY - box.top) / this.cell) * this.columns + column;
    const isThere = column < this.columns && block >= 0 && block < (this.pool?.size ?? 0);
    this.#choose(isThere ? block : null, event.clientX, event.clientY);
  }

  #key(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns };
    if (event.key === "Escape") return this.#choose(null);
    if (!(event.key in moves) || !this.pool) return undefined;
    event.preventDefault();
    const block = Math.min(this.pool.size - 1, Math.max(0, (this.cursor ?? -moves[event.key]) + moves[event.key]));
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [(block % this.columns) * this.cell, Math.floor(block / this.columns) * this.cell];
    this.#choose(block, box.left + x, box.top + y);
    return setText(this.spoken, this.describe(block).join(", "));
  }

  #choose(block, x, y) {
    this.isDirty ||= this.cursor !== block;
    this.cursor = block;
    showTip(block == null ? null : this.describe(block), x, y);
  }

  /** What the grid shows, in a line. */
  summary(pool) {
    const parts = [`${pool.used} of ${plural(pool.size, this.what)} in tables`];
    const shared = pool.numShared;
    if (shared) parts.push(`${shared} shared`);
    if (pool.cached.size) parts.push(`${pool.cached.size} cached`);
    return parts.join(", ");
  }
}

function shortened(table) {
  return table.length <= 12 ? table.join(", ") : `${table.slice(0, 10).join(", ")}, … ${table.at(-1)}`;
}
