// The live view: follows /events, and asks the engine to run, pause or take its time.

import { Board } from "./board.js";
import { byId, el, setText } from "./dom.js";
import { ask, key, post } from "./key.js";
import { EngineModel } from "./model.js";
import { SCENES } from "./scenes.js";
import { Sent } from "./sent.js";
import { follow } from "./stream.js";

const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const IDLE_US = 1.5e6; // the clock on the screen stops so long after the last thing that happened
const STEPS_SHOWN = 40;

export class Live {
  constructor() {
    this.model = new EngineModel();
    this.board = new Board("The engine");
    this.board.show(this.model);
    this.sent = new Sent(this.model);
    this.pace = { is_paused: false, seconds_per_step: 0 };
    this.skew = Infinity; // the page's clock less the engine's, in microseconds
    byId("live-board").append(this.board.node);
    this.#controls();
  }

  /** False where no engine is behind the page: it is replayed from files, by `trace replay` or on a website. */
  async open() {
    try {
      this.about = await (await ask("/live/about")).json();
    } catch (failure) {
      if (failure.status === 401) return this.#askForKey();
      if (failure.status === 404 || failure instanceof SyntaxError) return false; // some answer with a page of theirs
      return this.#notice(`The server does not answer: ${failure.message}`), true;
    }
    byId("key-form").hidden = true;
    byId("live-body").hidden = false;
    this.#showAbout();
    this.#follow();
    return true;
  }

  frame() {
    const bySteps = this.axis.value === "steps" || (this.axis.value === "auto" && (this.pace.is_paused || this.pace.seconds_per_step > 0));
    this.board.frame(bySteps ? this.#steps() : this.#time());
  }

  #time() {
    const span = Number(this.span.value) * 1e6;
    const clock = performance.now() * 1e3 - this.skew;
    const isIdle = this.pace.is_paused || !Number.isFinite(clock);
    const now = isIdle ? this.model.now : Math.max(this.model.now, Math.min(clock, this.model.now + this.#patience()));
    return { from: now - span, to: now, now, bySteps: false };
  }

  /** A step may take long: the clock waits for it only where nothing runs. */
  #patience() {
    return this.model.requests.size ? Infinity : IDLE_US;
  }

  #steps() {
    const now = this.model.step;
    return { from: Math.max(0, now + 1 - STEPS_SHOWN), to: Math.max(STEPS_SHOWN, now + 1), now, bySteps: true };
  }

  async #follow() {
    for (let attempt = 0; ; attempt += 1) {
      try {
        await follow((records) => {
          attempt = 0;
          for (const record of records) this.#take(record);
        });
        this.#notice("The server has ended the stream; trying again …");
      } catch (failure) {
        if (failure.status === 401) return void this.#askForKey();
        this.#notice(`${failure.status ?? "No connection"}: ${failure.message}; trying again …`);
      }
      this.watcher = null;
      await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]));
    }
  }

  #take(record) {
    if (record.kind === "start") {
      this.watcher = record.watcher;
      this.skew = Infinity;
      this.#setPace(record.pace, record.can_pause);
      this.#notice("");
    }
    if (record.kind === "pace") this.#setPace(record, true);
    if (record.kind === "start" || record.kind === "now") this.skew = Math.min(this.skew, performance.now() * 1e3 - record.at);
    this.model.apply(record);
    this.sent.take(record);
  }

  // -- what can be asked of the engine ---------------------------------------------------------------

  #controls() {
    byId("play").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send([{ prompt: byId("prompt").value }]);
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("play").requestSubmit();
    });
    for (const scene of SCENES) {
      byId("scenes").append(el("button", { type: "button", title: scene.hint, onclick: () => this.#send(scene.requests()) }, scene.name));
    }
    byId("pause").addEventListener("click", () => this.#ask({ is_paused: !this.pace.is_paused, seconds_per_step: this.pace.seconds_per_step }));
    byId("slow").addEventListener("change", () => this.#ask({ is_paused: this.pace.is_paused, seconds_per_step: Number(byId("slow").value) }));
    byId("step").addEventListener("click", () => this.#step());
    this.span = select("Window", [["5", "5 s"], ["15", "15 s"], ["60", "60 s"]], "15");
    this.axis = select("Axis", [["auto", "time; steps while paused"], ["time", "time"], ["steps", "steps"]], "auto");
    this.board.options.append(this.span.parentElement, this.axis.parentElement);
  }

  /** One after the other, so that they arrive in this order. */
  async #send(requests) {
    if (!this.watcher) return this.#notice("Not connected: nothing was sent.");
    const limit = Math.max(1, Number(byId("max-tokens").value) || 64);
    for (const request of requests) await this.sent.send(this.watcher, { max_tokens: limit, ...request }, this.about.can_chat);
    return undefined;
  }

  async #step() {
    if (!this.pace.is_paused) await this.#ask({ is_paused: true, seconds_per_step: this.pace.seconds_per_step });
    else await this.#pace({ action: "step" });
  }

  #ask(pace) {
    return this.#pace({ action: "set", ...pace });
  }

  async #pace(body) {
    try {
      await post("/live/pace", { watcher: this.watcher ?? "", ...body });
    } catch (failure) {
      setText(byId("pace-note"), failure.message);
    }
  }

  #setPace(pace, canPause) {
    this.pace = { is_paused: pace.is_paused, seconds_per_step: pace.seconds_per_step };
    const button = byId("pause");
    setText(button, pace.is_paused ? "Resume" : "Pause");
    button.setAttribute("aria-pressed", String(pace.is_paused));
    for (const id of ["pause", "step", "slow"]) byId(id).disabled = !canPause;
    byId("slow").value = [...byId("slow").options].find((option) => Number(option.value) === pace.seconds_per_step)?.value ?? "0";
    const note = pace.is_paused ? "Paused for everyone; requests wait. Step runs one step." : "";
    setText(byId("pace-note"), canPause ? note : "This engine has no step loop: one request runs at a time, to its end.");
    byId("live-body").classList.toggle("is-paused", pace.is_paused);
    this.board.touch();
  }

  // -- what is said ----------------------------------------------------------------------------------

  #showAbout() {
    setText(byId("which"), `${this.about.title} · ${this.about.model}`);
    document.title = `${this.about.title} · PageServe`;
    setText(this.board.title, "The engine now");
    if (!this.about.can_send) for (const button of byId("play").querySelectorAll("button")) button.disabled = true;
  }

  #notice(text) {
    byId("connection").hidden = !text;
    setText(byId("connection"), text);
  }

  #askForKey() {
    const form = byId("key-form");
    setText(byId("key-error"), key.get() ? "This key is not the right one." : "");
    key.clear();
    byId("live-body").hidden = true;
    form.hidden = false;
    form.onsubmit = (event) => {
      event.preventDefault();
      key.set(byId("key").value);
      byId("key").value = "";
      this.open();
    };
    byId("key").focus();
    return true;
  }
}

function select(name, options, chosen) {
  const node = el("select", {}, ...options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  el("label", {}, `${name} `, node);
  return node;
}
