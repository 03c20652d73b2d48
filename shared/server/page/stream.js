// GET /events, read by fetch: EventSource cannot send a key. Each event is a list of records.

import { ask } from "./key.js";

/** Calls `take(records)` for each event until the stream ends. Throws what `ask` throws. */
export async function follow(take, signal) {
  const response = await ask("/events", { headers: { Accept: "text/event-stream" }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
  }
}
