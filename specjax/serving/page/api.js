/** Asks the server. */

import { readEvents } from "./events.js";

const KEY = "specjax-key";
const GONE = "The server does not answer. See whether specjax serve still runs.";
const BROKEN = "The connection broke off before the text had ended.";

/** What went wrong, in words for the user; status is 0 if there was no answer. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export class Api {
  /** Kept for this tab only. */
  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  set key(key) {
    sessionStorage.setItem(KEY, key);
  }

  async get(path) {
    return (await this.#ask(path, {})).json();
  }

  async post(path, body, signal) {
    return (await this.#post(path, body, signal)).json();
  }

  /** The events of an answer that is a stream. */
  async *stream(path, body, signal) {
    const response = await this.#post(path, { ...body, stream: true }, signal);
    const events = readEvents(response.body);
    for (;;) {
      const next = await events.next().catch((error) => {
        throw signal.aborted ? error : new ServerError(BROKEN);
      });
      if (next.done && !next.value) throw new ServerError(BROKEN);
      if (next.done) return;
      if (next.value.error) throw new ServerError(next.value.error.message, 500);
      yield next.value;
    }
  }

  #post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    return this.#ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  async #ask(path, options) {
    const headers = { ...options.headers };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      throw options.signal?.aborted ? error : new ServerError(GONE);
    }
    if (response.ok) return response;
    const told = await response.json().catch(() => null);
    throw new ServerError(told?.error?.message ?? `The server answers with status ${response.status}.`, response.status);
  }
}
