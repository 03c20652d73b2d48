// What the records say: sequences and where they are, tables of blocks, figures. Knows nothing of the page.
// Records are described in shared/trace/encode.py; times are microseconds of the engine's clock.

import { Pool } from "./pool.js";

const KEPT_SEQUENCES = 160; // finished ones beyond these are forgotten
const KEPT_SEGMENTS = 3000; // of one sequence
const KEPT_LINES = 60;
const KEPT_VALUES = 120; // of a sparkline
const RATE_WINDOW = 2e6; // over which tokens per second are taken

export class Sequence {
  constructor(name, request, number, prompt, at, step) {
    Object.assign(this, { name, request, number, prompt, queuedAt: at });
    this.state = "waiting";
    this.computed = 0;
    this.output = 0;
    this.cached = 0;
    this.drafted = 0;
    this.accepted = 0;
    this.preemptions = 0;
    this.firstAt = null;
    this.lastAt = null;
    this.finishedAt = null;
    this.reason = null;
    this.segments = []; // {kind, t0, t1, s0, s1, tokens, drafts, accepted}
    this.wait = { kind: "queued", t0: at, s0: step }; // the wait it is in now
  }

  get isOver() {
    return this.state === "finished";
  }

  get ttft() {
    return this.firstAt == null ? null : this.firstAt - this.queuedAt;
  }

  add(segment) {
    this.segments.push(segment);
    if (this.segments.length > KEPT_SEGMENTS) this.segments.splice(0, KEPT_SEGMENTS / 2);
  }

  endWait(at, step) {
    if (this.wait) this.add({ ...this.wait, t1: Math.max(at, this.wait.t0), s1: step, tokens: 0, drafts: 0, accepted: 0 });
    this.wait = null;
  }
}

export class EngineModel {
  constructor() {
    this.version = 0; // counts changes
    this.log = []; // {at, name, text}, the newest last
    this.own = new Map(); // request id -> what the page calls it
    this.#reset({ engine: {} });
  }

  /** Apply one record; those about requests that are not known are left out. */
  apply(record) {
    this.version += 1;
    const handler = this[`on_${record.kind}`];
    if (record.at != null) this.now = Math.max(this.now, record.at + (record.took ?? 0));
    if (handler) handler.call(this, record);
  }

  get running() {
    return this.#count("running");
  }

  get waiting() {
    return this.#count("waiting");
  }

  get swapped() {
    return this.#count("swapped");
  }

  /** Tokens per second over the last seconds, up to `now`. */
  rate(now) {
    const recent = this.recent;
    while (recent.length && recent[0].at < now - RATE_WINDOW) recent.shift();
    const span = Math.min(RATE_WINDOW, Math.max(2e5, now - this.begun));
    return recent.reduce((sum, entry) => sum + entry.tokens, 0) / (span / 1e6);
  }

  label(name) {
    const sequence = this.sequences.get(name);
    const own = sequence && this.own.get(sequence.request);
    if (own) return name === sequence.request ? own : own + name.slice(sequence.request.length);
    return name.length <= 10 ? name : `${name.split("-")[0].slice(0, 5)}…${name.slice(-4)}`;
  }

  #reset(start) {
    this.start = start;
    this.engine = start.engine;
    this.now = start.at ?? 0;
    this.begun = this.now;
    this.step = 0;
    this.sequences = new Map(); // name -> Sequence, in order of arrival
    this.requests = new Map(); // request id -> names
    this.numSeen = 0;
    this.pool = new Pool(this.engine.num_blocks ?? 0);
    this.swap = new Pool(this.engine.num_swap_blocks ?? 0);
    this.last = null; // the last step that ran something
    this.recent = []; // {at, tokens} of the last seconds
    this.rates = []; // tokens per second, one per step
    this.ttfts = [];
    this.gaps = [];
    this.hits = { found: 0, asked: 0 };
    this.drafts = { right: 0, made: 0 };
    this.finished = 0;
    this.preempted = 0;
  }

  #count(state) {
    let count = 0;
    for (const sequence of this.sequences.values()) count += sequence.state === state;
    return count;
  }

  #say(at, name, text) {
    this.log.push({ at, name, text });
    if (this.log.length > KEPT_LINES) this.log.shift();
  }

  #arrive(id, names, prompt, at) {
    this.requests.set(id, names);
    for (const name of names) {
      if (this.sequences.has(name)) continue;
      this.sequences.set(name, new Sequence(name, id, this.numSeen++, prompt, at, this.step));
    }
    if (this.sequences.size > KEPT_SEQUENCES) this.#forget();
  }

  #forget() {
    for (const [name, sequence] of this.sequences) {
      if (this.sequences.size <= KEPT_SEQUENCES) return;
      if (sequence.isOver) this.sequences.delete(name);
    }
  }

  #blocks(record) {
    for (const [name, cached] of record.pool_gone ?? []) this.pool.drop(name, cached);
    for (const [name, place, blocks] of record.pool ?? []) this.pool.grow(name, place, blocks);
    if (record.cached) this.pool.cached = new Set(record.cached);
    for (const [name] of record.swap_gone ?? []) this.swap.drop(name, []);
    for (const [name, place, blocks] of record.swap ?? []) this.swap.grow(name, place, blocks);
  }

  on_start(record) {
    this.#reset(record);
    for (const request of record.requests ?? []) {
      this.#arrive(request.id, request.sequences.map((row) => row[0]), request.prompt, request.at);
      for (const [name, state, computed, output] of request.sequences) {
        const sequence = this.sequences.get(name);
        Object.assign(sequence, { state, computed, output });
        if (state !== "waiting") sequence.wait = null;
        if (state === "swapped") sequence.wait = { kind: "swapped", t0: record.at, s0: 0 };
      }
    }
    this.#blocks(record);
  }

  on_lost(record) {
    this.#say(this.now, null, `${record.count} records were too many to follow; the picture starts anew`);
  }

  on_queued(record) {
    this.#arrive(record.id, record.sequences, record.prompt, record.at);
    this.#say(record.at, record.sequences[0], `arrives with ${record.prompt} prompt tokens`);
  }

  on_admitted(record) {
    const sequence = this.sequences.get(record.id);
    if (!sequence) return;
    if (sequence.state !== "running") this.#say(record.at, record.id, `joins the batch`);
    sequence.state = "running"; // its wait ends with the step that it is in, which began before
  }

  on_swapped_in(record) {
    const sequence = this.sequences.get(record.id);
    if (!sequence) return;
    sequence.state = "running";
    this.#say(record.at, record.id, `is swapped in again`);
  }

  on_prefix_hit(record) {
    const sequence = this.sequences.get(record.id);
    if (!sequence) return;
    sequence.cached = record.tokens;
    this.hits.found += record.tokens;
    this.hits.asked += sequence.prompt;
    if (record.tokens) this.#say(record.at, record.id, `has ${record.tokens} of ${sequence.prompt} prompt tokens in the cache`);
  }

  on_preempted(record) {
    const sequence = this.sequences.get(record.id);
    this.preempted += 1;
    if (!sequence) return;
    const isSwap = record.how === "swap";
    sequence.state = isSwap ? "swapped" : "waiting";
    sequence.preemptions += 1;
    sequence.wait = { kind: isSwap ? "swapped" : "preempted", t0: record.at, s0: this.step + 1 };
    this.#say(record.at, record.id, `is preempted (${record.how})`);
  }

  on_freed(record) {
    this.#blocks(record);
  }

  on_finished(record) {
    for (const name of this.requests.get(record.id) ?? []) {
      const sequence = this.sequences.get(name);
      if (!sequence || sequence.isOver) continue;
      sequence.endWait(record.at, this.step);
      sequence.state = "finished";
      sequence.reason = record.reason;
      sequence.finishedAt = record.at;
    }
    if (this.requests.delete(record.id)) {
      this.finished += 1;
      this.#say(record.at, record.id, `is over: ${record.reason}, ${record.tokens} tokens`);
    }
  }

  on_step(record) {
    this.step = record.n;
    this.#blocks(record);
    if (!record.rows.length) return;
    this.last = record;
    const end = record.at + record.took;
    let tokens = 0;
    for (const row of record.rows) tokens += this.#row(row, record, end);
    this.recent.push({ at: end, tokens });
    keep(this.rates, this.rate(end));
  }

  #row([name, kind, start, num, drafts, fresh], record, end) {
    const sequence = this.sequences.get(name);
    if (!sequence) return fresh;
    const accepted = drafts ? Math.max(0, fresh - 1) : 0;
    if (sequence.wait) sequence.endWait(record.at, record.n);
    sequence.state = "running";
    sequence.computed = start + num + accepted;
    sequence.drafted += drafts;
    sequence.accepted += accepted;
    this.drafts.made += drafts;
    this.drafts.right += accepted;
    const what = drafts ? "verify" : kind === "d" ? "decode" : "prefill";
    sequence.add({ kind: what, t0: record.at, t1: end, s0: record.n, s1: record.n + 1, tokens: num, drafts, accepted });
    if (fresh) this.#tokens(sequence, fresh, end);
    return fresh;
  }

  #tokens(sequence, fresh, end) {
    sequence.output += fresh;
    if (sequence.firstAt == null && sequence.output === fresh) {
      sequence.firstAt = end;
      keep(this.ttfts, sequence.ttft);
    } else if (sequence.lastAt != null) {
      keep(this.gaps, end - sequence.lastAt);
    }
    sequence.lastAt = end;
  }
}

function keep(values, value) {
  values.push(value);
  if (values.length > KEPT_VALUES) values.shift();
}
