// Ready-made requests: each shows something of the engine.

const QUESTIONS = [
  "Why is the sky blue?", "Name three fruits and say what they taste like.", "Explain what a queue is to a child.",
  "Write two sentences about the sea.",
];
const SYSTEM =
  "You are the librarian of a small town by the sea. You answer in one or two short sentences, kindly and exactly. " +
  "You know the opening hours: from nine to five on weekdays, from ten to one on Saturdays, closed on Sundays. " +
  "Children may borrow five books for four weeks, grown-ups ten. Maps and newspapers stay in the reading room. ";
const COPIED =
  "The red boat left the harbour at six. The blue boat left the harbour at seven. The green boat stayed in the harbour. " +
  "At noon the red boat came back, and at one the blue boat came back.";

export const SCENES = [
  { name: "Burst of four", hint: "Four prompts at once: who waits?", requests: () => QUESTIONS.map((prompt) => ({ prompt })) },
  { name: "Inject a fifth", hint: "One more while the others run: it joins between two steps", requests: () => [{ prompt: "What is a prime number?" }] },
  { name: "Long prompt", hint: "A prompt of several hundred tokens: watch the chunks", requests: () => [{ prompt: longPrompt() }] },
  { name: "Shared prefixes", hint: "Three prompts with the same long beginning: blocks are shared",
    requests: () => ["When do you open on Saturday?", "How many books may I borrow?", "May I take a map home?"].map((prompt) => ({ prompt: SYSTEM + prompt })) },
  { name: "Copy task", hint: "An answer that repeats its prompt: guesses are right",
    requests: () => [{ prompt: `Repeat this text exactly, word for word: ${COPIED}`, max_tokens: 96 }] },
];

/** No two are alike, so that no cache knows it. */
function longPrompt() {
  const salt = Math.floor(Math.random() * 1e6);
  const days = Array.from({ length: 40 }, (_, day) => `Day ${day + 1} of journey ${salt}: we walked ${(day * 7 + salt) % 23} miles and met ${(day * 5) % 9} travellers.`);
  return `${days.join(" ")} What happened on day ${1 + (salt % 40)}?`;
}
