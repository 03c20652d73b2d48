// The server's key, where it wants one: asked for once, kept until the tab is closed, sent to this server only.

const NAME = "pageserve-key";

export const key = {
  get: () => sessionStorage.getItem(NAME),
  set: (value) => sessionStorage.setItem(NAME, value),
  clear: () => sessionStorage.removeItem(NAME),
};

/** fetch with the key; a refusal is an error with its status, code and message. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const failure = new Error(body?.error?.message ?? response.statusText);
  Object.assign(failure, { status: response.status, code: body?.error?.code ?? "" });
  throw failure;
}

export const post = (path, body) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
