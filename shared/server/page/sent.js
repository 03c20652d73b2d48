// Requests that were sent from this page: the only ones whose text and tokens are shown.

import { byId, el, plural, setText, speak } from "./dom.js";
import { post } from "./key.js";

const KEPT = 24;

export class Sent {
  constructor(model) {
    this.model = model;
    this.count = 0;
    this.answers = new Map(); // request id -> {text, tokens, error, reason}; may come before the id is known here
    this.cards = new Map(); // request id -> its card
  }

  /** Send one prompt. A refusal (503: the queue is full) becomes a card as well. */
  async send(watcher, request, isChat) {
    const label = `you ${(this.count += 1)}`;
    const card = this.#card(label, request.prompt);
    try {
      const body = { watcher, prompt: request.prompt, max_tokens: request.max_tokens, is_chat: isChat };
      const { id } = await (await post("/live/send", body)).json();
      this.model.own.set(id, label);
      this.model.version += 1;
      card.node.dataset.request = id;
      this.cards.set(id, card);
      this.#fill(id);
    } catch (failure) {
      this.#fail(card, label, failure.status ?? "no answer", failure.message);
    }
  }

  /** The records that are about requests of one's own. */
  take(record) {
    if (!["text", "error", "finished"].includes(record.kind)) return;
    if (record.kind === "finished" && !this.cards.has(record.id)) return;
    const answer = this.#answer(record.id);
    if (record.kind === "text") {
      answer.text += record.text;
      answer.tokens += record.tokens.length;
    } else if (record.kind === "error") answer.error = record;
    else answer.reason = record.reason;
    this.#fill(record.id);
  }

  #answer(id) {
    if (!this.answers.has(id)) this.answers.set(id, { text: "", tokens: 0, error: null, reason: null });
    return this.answers.get(id);
  }

  #card(label, prompt) {
    byId("sent-none").hidden = true;
    const chip = el("span", { class: "chip" }, "sending");
    const text = el("p", { class: "answer" });
    const asked = el("p", { class: "asked" }, prompt.length > 160 ? `${prompt.slice(0, 157)}…` : prompt);
    const node = el("li", {}, el("div", { class: "card-head" }, el("strong", {}, label), chip), asked, text);
    byId("sent").prepend(node);
    while (byId("sent").children.length > KEPT) byId("sent").lastElementChild.remove();
    return { node, chip, text, label };
  }

  #fill(id) {
    const [card, answer] = [this.cards.get(id), this.#answer(id)];
    if (!card) return;
    if (answer.error) return this.#fail(card, card.label, answer.error.status, answer.error.message);
    setText(card.text, answer.text);
    setText(card.chip, answer.reason ? `${answer.reason}, ${plural(answer.tokens, "token")}` : answer.tokens ? plural(answer.tokens, "token") : "sent");
    if (answer.reason) this.#forget(id, `${card.label} is over`);
    return undefined;
  }

  #fail(card, label, status, message) {
    card.node.classList.add("failed");
    setText(card.chip, `${status}`);
    setText(card.text, message);
    speak(`${label}: ${status}, ${message}`);
  }

  #forget(id, words) {
    speak(words);
    const card = this.cards.get(id);
    const { text, tokens } = this.answers.get(id);
    setText(card.text, text || "(no text)");
    if (!tokens) return; // what is late is still shown
    this.answers.delete(id);
    this.cards.delete(id);
  }
}
