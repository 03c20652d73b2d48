// Recordings: one replayed, or two side by side on one clock, which begins when the first request arrives.

import { Board } from "./board.js";
import { byId, el, setText } from "./dom.js";
import { EngineModel } from "./model.js";

const FOLDER = new URL("recordings/", import.meta.url);
const OWN = "own";
const VERSION = 1;

/** The records of a file. Throws an Error that says what is wrong with it. */
export function parse(text, name) {
  const records = text.split("\n").filter(Boolean).map((line, index) => {
    try {
      return JSON.parse(line);
    } catch {
      throw new Error(`${name}, line ${index + 1}: is no record; was the recording cut off?`);
    }
  });
  if (records[0]?.kind !== "start") throw new Error(`${name}: is no recording; one is made with --record FILE`);
  if (records[0].version !== VERSION) throw new Error(`${name}: has version ${records[0].version}, this page reads ${VERSION}`);
  return records;
}

class Track {
  constructor(records, title) {
    this.records = records;
    this.board = new Board(title);
    this.peers = []; // the tracks that are shown
    this.zero = records.find((record) => record.kind === "queued")?.at ?? records[0].at;
    this.end = Math.max(...records.map((record) => (record.at ?? 0) + (record.took ?? 0))) - this.zero;
    this.#begin();
  }

  /** Show the engine as it was at `time`, microseconds after the first arrival. */
  seek(time) {
    if (time < this.time) this.#begin();
    this.time = time;
    const until = time + this.zero;
    while (this.next < this.records.length && over(this.records[this.next]) <= until) {
      this.model.apply(this.records[this.next]);
      this.next += 1;
    }
    const following = this.records[this.next];
    this.pending = following?.kind === "step" && following.at <= until && following.rows.length ? following : null;
  }

  frame(end) {
    const [from, now] = [this.zero, this.zero + this.time];
    this.board.peers = this.peers.map((track) => track.model);
    this.board.frame({ from, to: from + end, now, zero: this.zero, bySteps: false }, this.pending);
  }

  /** When steps end, after the first arrival. */
  get moments() {
    return this.records.filter((record) => record.kind === "step").map((record) => over(record) - this.zero);
  }

  #begin() {
    this.model = new EngineModel();
    this.next = 0;
    this.time = 0;
    this.pending = null;
    this.board.show(this.model);
  }
}

const over = (record) => (record.at ?? 0) + (record.took ?? 0);

export class Player {
  constructor() {
    this.tracks = [];
    this.time = 0;
    this.end = 1;
    this.isRunning = false;
    this.newest = null;  // what is being loaded
    this.#controls();
  }

  /** Offer what the server has; begin with `wanted`, a path, or with a scene, `at` seconds after its first request. */
  async open({ wanted = null, scene = null, at = 0 } = {}) {
    const index = await (await fetch(new URL("index.json", FOLDER))).json().catch(() => []);
    this.scenes = new Map(index.map((scene) => [scene.name, scene]));
    const name = wanted && wanted.split("/").at(-1);
    if (wanted) this.scenes.set(name, { name, title: `Replay: ${name}`, text: "", tracks: [{ file: name }] });
    const options = [...this.scenes.values()].map((scene) => el("option", { value: scene.name }, scene.title));
    byId("scene").replaceChildren(...options, el("option", { value: OWN }, "Files of your own …"));
    byId("scene").value = name ?? (this.scenes.has(scene) ? scene : index[0]?.name ?? OWN);
    await this.#choose();
    if (at) this.#seek(at * 1e6);
  }

  frame(elapsedMs) {
    if (this.isRunning) {
      this.#seek(this.time + elapsedMs * 1e3 * Number(byId("speed").value));
      if (this.time >= this.end) this.#run(false);
    }
    for (const track of this.tracks) track.frame(this.end);
  }

  touch() {
    for (const track of this.tracks) track.board.touch();
  }

  async #choose() {
    const value = byId("scene").value;
    byId("own-files").hidden = value !== OWN;
    this.newest = null;
    if (value === OWN) return this.#show([], "Recordings are made with --record FILE, by any command that runs an engine.");
    const scene = this.scenes.get(value);
    return this.#load(scene.text, scene.tracks.map(async ({ file, title }) => {
      const response = await fetch(new URL(encodeURIComponent(file), FOLDER));
      if (!response.ok) throw new Error(`${file}: ${response.status}`);
      const records = parse(await response.text(), file);
      return new Track(records, title ?? records[0].title ?? file);
    }));
  }

  #chooseFiles() {
    const files = [byId("file-a").files[0], byId("file-b").files[0]].filter(Boolean);
    return this.#load("", files.map(async (file) => {
      const records = parse(await file.text(), file.name);
      return new Track(records, `${records[0].title ?? ""} · ${file.name}`);
    }));
  }

  async #load(text, tracks) {
    setText(byId("player-error"), "");
    const load = (this.newest = {});  // a choice made while an older one is still on its way wins
    try {
      const loaded = await Promise.all(tracks);
      if (load === this.newest) this.#show(loaded, text);
    } catch (failure) {
      if (load !== this.newest) return;
      this.#show([], "");
      setText(byId("player-error"), failure.message);
    }
  }

  #show(tracks, text) {
    this.tracks = tracks;
    this.end = Math.max(1, ...tracks.map((track) => track.end));
    setText(byId("scene-text"), text);
    byId("boards").replaceChildren(...tracks.map((track) => track.board.node));
    for (const track of tracks) track.peers = tracks;
    byId("boards").classList.toggle("pair", tracks.length > 1);
    this.moments = [...new Set(tracks.flatMap((track) => track.moments))].sort((a, b) => a - b);
    this.#run(false);
    this.#seek(0);
  }

  #seek(time) {
    this.time = Math.min(this.end, Math.max(0, time));
    for (const track of this.tracks) track.seek(this.time);
    byId("seek").value = String(Math.round((1000 * this.time) / this.end));
    const clock = `${(this.time / 1e6).toFixed(2)} s of ${(this.end / 1e6).toFixed(2)} s`;
    setText(byId("clock"), clock);
    byId("seek").setAttribute("aria-valuetext", clock);
  }

  #run(isRunning) {
    if (isRunning && this.time >= this.end) this.#seek(0);
    this.isRunning = isRunning;
    setText(byId("run"), isRunning ? "Pause" : "Play");
    byId("run").setAttribute("aria-pressed", String(isRunning));
  }

  #jump(direction) {
    this.#run(false);
    const later = direction > 0 ? this.moments.find((moment) => moment > this.time) : this.moments.findLast((moment) => moment < this.time);
    this.#seek(later ?? (direction > 0 ? this.end : 0));
  }

  #controls() {
    byId("scene").addEventListener("change", () => this.#choose());
    for (const id of ["file-a", "file-b"]) byId(id).addEventListener("change", () => this.#chooseFiles());
    byId("run").addEventListener("click", () => this.#run(!this.isRunning));
    byId("back").addEventListener("click", () => this.#jump(-1));
    byId("forward").addEventListener("click", () => this.#jump(1));
    byId("seek").addEventListener("input", () => {
      this.#run(false);
      this.#seek((Number(byId("seek").value) / 1000) * this.end);
    });
  }
}
