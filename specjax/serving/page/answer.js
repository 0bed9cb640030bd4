/** One answer as it grows: its tokens, how each of them was made, and how fast they came. */

import { Figures } from "./figures.js";

/** States in which an answer does not grow any more. */
export const FINISHED = new Set(["ended", "stopped", "failed"]);

export class Answer {
  /** "waiting", "running", "ended", "stopped" or "failed". */
  state = "waiting";
  /** Of {ids, text, place, rejected: [{ids, text, place}], round}. */
  tokens = [];
  figures = new Figures();
  /** Why it ended, in OpenAI's words. */
  reason = null;
  error = null;
  #times = {};
  #first = 0; // tokens that came at once at the beginning
  #abort = new AbortController();

  /** @param {{draft: number|string, draft_by?: string[], accept: string}} lane how drafts are made and accepted */
  constructor(lane) {
    this.lane = lane;
  }

  /**
   * Ask for it and let it grow.
   *
   * @param {Api} api
   * @param {(signal: AbortSignal) => Promise<object>} makeBody what is asked for
   * @param {() => void} changed called after each change
   */
  async run(api, makeBody, changed) {
    try {
      if (this.#abort.signal.aborted) throw this.#abort.signal.reason;
      this.state = "running";
      this.#times.begin = performance.now();
      changed();
      const body = await makeBody(this.#abort.signal);
      let shown = "";
      const extras = { trace: true, stream_options: { include_usage: true } };
      for await (const event of api.stream("v1/completions", { ...body, ...extras }, this.#abort.signal)) {
        if (event.usage) this.figures.settle(event.usage.drafting);
        for (const choice of event.choices) {
          shown += choice.text;
          this.reason = choice.finish_reason;
          this.#add(choice.trace ?? []);
        }
        changed();
      }
      this.#cut(shown.length);
      this.state = "ended";
    } catch (error) {
      this.state = this.#abort.signal.aborted ? "stopped" : "failed";
      this.error = this.state === "failed" ? error : null;
    }
    changed();
  }

  stop() {
    this.#abort.abort();
  }

  get text() {
    return this.tokens.map((token) => token.text).join("");
  }

  /** Seconds until the first token; null before it. */
  get wait() {
    return this.#times.first == null ? null : (this.#times.first - this.#times.begin) / 1000;
  }

  /** Tokens a second after the first that came. */
  get speed() {
    const seconds = (this.#times.last - this.#times.first) / 1000;
    return seconds > 0 ? (this.tokens.length - this.#first) / seconds : 0;
  }

  #add(trace) {
    if (!trace.length) return;
    this.#times.last = performance.now();
    if (this.#times.first == null) {
      this.#times.first = this.#times.last;
      this.#first = trace.length;
    }
    for (const made of trace) {
      const before = this.figures.standing;
      const rejected = made.rejected.map(({ token, text }, index) => ({ ids: [token], text, place: before + index + 1 }));
      const token = { ids: [made.token], text: made.text, place: made.place, rejected };
      token.round = this.figures.add(token);
      this.tokens.push(token);
    }
  }

  /** A stop string ends the text inside a token or before some: what follows is not shown. */
  #cut(length) {
    let left = length;
    for (const token of this.tokens) {
      token.text = token.text.slice(0, left);
      left -= token.text.length;
    }
  }
}
