/** Shows an answer: its text, token by token, and its figures. */

import { FINISHED } from "./answer.js";
import { announce, make } from "./dom.js";
import { RoundsStrip } from "./rounds_strip.js";
import { laneWords } from "./settings.js";
import { shade } from "./shades.js";
import { spoken } from "./token_words.js";
import { walk } from "./walking.js";

const NAMES = ["A", "B"];
const REASONS = { stop: "The model, or a stop string, ended the text.", length: "The limit of tokens ended the text." };

export class AnswerView {
  #turn;
  #answer;
  #most;
  #card;
  #on;
  #shown = 0;
  #strip;
  #figures = make("dl", { class: "figures" });
  #places = make("ul", { class: "places", "aria-label": "Accepted drafts by place" });
  #text = make("div", { class: "text", tabindex: 0, role: "group", "aria-describedby": "walking-help" });
  #end = make("p", { class: "end quiet" });
  #buttons = make("div", { class: "end-buttons" });

  /**
   * @param {Turn} turn
   * @param {number} lane which of its answers
   * @param {{most: number, card: TokenCard, prose: boolean}} page most drafts of a round, the one card, and whether texts
   *   are prose, not code
   * @param {{fork: (prefix: object[]) => void, write: (prefix: object[], text: string) => void}} on
   */
  constructor(turn, lane, page, on) {
    [this.#turn, this.#answer, this.#most, this.#card, this.#on] = [turn, turn.answers[lane], page.most, page.card, on];
    this.#strip = new RoundsStrip(page.most);
    const name = NAMES[lane];
    this.#text.setAttribute("aria-label", `Answer ${name}`);
    if (page.prose) this.#text.classList.add("prose");
    const words = laneWords(this.#answer.lane);
    const title = make("h3", {}, make("span", { class: `badge lane-${name.toLowerCase()}` }, name), ` ${words}`);
    this.node = make("section", { class: "answer", "aria-label": `Answer ${name}, ${words}` });
    this.node.append(title, this.#figures, this.#places, this.#strip.node, this.#text, this.#end, this.#buttons);
    turn.prefix.forEach((token) => this.#text.append(this.#span(token, "kept")));
    this.#listen();
    this.update();
  }

  /** Show what has come since the last time. */
  update() {
    const { tokens, state } = this.#answer;
    for (const token of tokens.slice(this.#shown)) {
      this.#text.append(this.#span(token));
      this.#strip.add(token);
    }
    this.#shown = tokens.length;
    this.#tell();
    const finished = FINISHED.has(state);
    this.node.dataset.state = state;
    this.#text.setAttribute("aria-busy", String(!finished));
    if (finished) this.#finish();
  }

  /** Mark the token where this text parts from the other one; null if it does not. */
  part(index) {
    const marked = index == null ? null : this.#text.children[this.#turn.prefix.length + index];
    this.#text.querySelector(".differs")?.classList.remove("differs");
    marked?.classList.add("differs");
  }

  get #all() {
    return [...this.#turn.prefix, ...this.#answer.tokens];
  }

  #span(token, kept = "") {
    const lines = /^\s*\n\s*$/.test(token.text) ? " lines" : "";
    const kind = token.typed ? "typed" : token.place > 0 ? "drafted" : "own";
    const parted = token.rejected.length ? " parted" : "";
    const node = make("span", { class: `token ${kind}${parted}${lines} ${kept}`, "data-place": token.place }, token.text);
    if (kind === "drafted") shade(node, token.place, this.#most);
    return node;
  }

  #tell() {
    const { figures, wait, speed, tokens } = this.#answer;
    const entry = (name, value, key) => make("div", { "data-figure": key }, make("dt", {}, name), make("dd", {}, value));
    this.#figures.replaceChildren(
      entry("tokens/round", figures.rounds ? figures.tokensPerRound.toFixed(2) : "–", "tokens-per-round"),
      entry("accepted", figures.draftedInAll ? percent(figures.acceptance) : "–", "acceptance"),
      entry("tokens/s", speed ? speed.toFixed(1) : "–", "speed"),
      entry("tokens", String(tokens.length), "tokens"),
      entry("to the first", wait == null ? "–" : `${wait.toFixed(2)} s`, "wait"),
    );
    const places = figures.drafted.map((drafted, index) => drafted && this.#place(index + 1, drafted, figures));
    this.#places.replaceChildren(...places.filter(Boolean));
  }

  #place(place, drafted, figures) {
    const accepted = figures.accepted[place - 1];
    const bar = make("span", { class: "place-bar" }, make("span", {}));
    bar.firstChild.style.width = percent(accepted / drafted).replace(" ", "");
    const item = make("li", {}, make("span", { class: "token drafted" }, String(place)), bar, `${accepted}/${drafted}`);
    shade(item.firstChild, place, this.#most);
    return item;
  }

  #finish() {
    const { state, reason, error, figures, tokens } = this.#answer;
    if (state === "ended") this.#redrawCut();
    this.#strip.describe(`${figures.rounds} rounds, ${figures.tokensPerRound.toFixed(2)} tokens a round`);
    this.#end.classList.toggle("problem", state === "failed");
    this.#end.textContent =
      state === "failed" ? error.message : state === "stopped" ? "You stopped it." : (REASONS[reason] ?? "");
    const button = (words, action) => make("button", { type: "button", onclick: action }, words);
    const further = state === "stopped" || reason === "length";
    this.#buttons.replaceChildren(
      button(state === "failed" ? "Try again" : "Regenerate", () => this.#on.fork(this.#turn.prefix)),
      ...(further && tokens.length ? [button("Go on", () => this.#on.fork(this.#all))] : []),
    );
  }

  /** A stop string may have cut the text after it was shown. */
  #redrawCut() {
    const before = this.#turn.prefix.length;
    this.#answer.tokens.forEach((token, index) => {
      const node = this.#text.children[before + index];
      if (node.textContent !== token.text) node.textContent = token.text;
    });
  }

  #listen() {
    const text = this.#text;
    const indexOf = (event) => [...text.children].indexOf(event.target.closest(".token"));
    text.addEventListener("pointerover", (event) => {
      const index = indexOf(event);
      if (index >= 0 && event.pointerType === "mouse") this.#card.peek(this.#all[index], text.children[index]);
    });
    text.addEventListener("pointerout", () => this.#card.leave());
    text.addEventListener("click", (event) => {
      const index = indexOf(event);
      if (index >= 0 && window.getSelection().isCollapsed) this.#open(index);
    });
    walk(text, () => this.#all, {
      reach: (index) => {
        this.#card.peek(this.#all[index], text.children[index]);
        announce(spoken(this.#all[index]));
      },
      open: (index) => this.#open(index),
      leave: () => this.#card.close(),
    });
  }

  #open(index) {
    const all = this.#all;
    const before = all.slice(0, index);
    this.#card.pin(all[index], this.#text.children[index], this.#text, {
      again: () => this.#on.fork(before),
      take: (count) => {
        const taken = all[index].rejected.slice(0, count);
        this.#on.fork([...before, ...taken.map(({ ids, text }) => ({ ids, text, place: 0, rejected: [], typed: true }))]);
      },
      write: (text) => this.#on.write(before, text),
    });
  }
}

const percent = (fraction) => `${Math.round(100 * fraction)} %`;
