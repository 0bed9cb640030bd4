/** A drawing of all rounds, one column each: drafts from the ground up, filled if accepted, and hollow if not. */

import { make } from "./dom.js";
import { shade } from "./shades.js";

const WIDTH = 7;
const TALLEST = 48;

export class RoundsStrip {
  #svg = make("svg:svg", { role: "img", width: 0 });
  #most;
  #cell;
  #height;
  #columns = 0;

  /** @param {number} most drafts of a round */
  constructor(most) {
    this.#most = most;
    this.#cell = Math.max(2, Math.min(6, Math.floor(TALLEST / Math.max(most, 1))));
    this.#height = this.#most * this.#cell + 3;
    this.#svg.setAttribute("height", this.#height);
    this.node = make("div", { class: "strip", hidden: !most }, this.#svg);
  }

  add(token) {
    if (token.round === 0 || !this.#most) return;
    if (token.round !== this.#columns) this.#begin(token.round);
    if (token.place > 0) this.#draw(token.place, "stood");
    token.rejected.forEach((draft) => this.#draw(draft.place, "fell"));
  }

  /** Say in words what is drawn, and show the latest. */
  describe(words) {
    this.#svg.setAttribute("aria-label", words);
    this.node.scrollLeft = this.node.scrollWidth;
  }

  #begin(round) {
    this.#columns = round;
    this.#svg.setAttribute("width", round * WIDTH);
    const x = (round - 1) * WIDTH;
    const ground = make("svg:rect", { x, y: this.#height - 2, width: WIDTH - 1, height: 2, class: "ground" });
    this.#svg.append(ground);
  }

  #draw(place, kind) {
    const y = (this.#most - place) * this.#cell + 0.5;
    const x = (this.#columns - 1) * WIDTH + 0.5;
    const cell = make("svg:rect", { x, y, width: WIDTH - 2, height: this.#cell - 1, class: kind });
    if (kind === "stood") shade(cell, place, this.#most);
    this.#svg.append(cell);
  }
}
