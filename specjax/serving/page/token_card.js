/** The card of a token: how it was made, which drafts stood in its place, and forks from it. There is one card. */

import { make } from "./dom.js";
import { howMade, visible } from "./token_words.js";

const MARGIN = 8;

export class TokenCard {
  #node = make("div", { class: "card", hidden: true });
  #owner = null;
  #pinned = false;

  constructor() {
    document.body.append(this.#node);
    this.#node.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      const owner = this.#owner;
      this.close();
      owner?.focus();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!this.#node.contains(event.target)) this.close();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.#pinned) this.close();
    });
    this.#node.addEventListener("pointerleave", () => this.leave());
  }

  /** Show what there is to know of a token, unless another one's card is pinned. */
  peek(token, place) {
    if (this.#pinned) return;
    this.#fill(token);
    this.#put(place);
  }

  /** The pointer has left a token. It may be on its way to the card. */
  leave() {
    setTimeout(() => {
      if (!this.#pinned && !this.#node.matches(":hover")) this.close();
    }, 120);
  }

  /**
   * Show the card with what can be done, and give it the focus.
   *
   * @param {HTMLElement} owner gets the focus back
   * @param {{again: () => void, take: (count: number) => void, write: (text: string) => void}} on
   */
  pin(token, place, owner, on) {
    this.#fill(token, on);
    this.#pinned = true;
    this.#owner = owner;
    this.#node.setAttribute("role", "dialog");
    this.#node.setAttribute("aria-label", `Token ${visible(token.text)}`);
    this.#put(place);
    this.#node.querySelector("button").focus();
  }

  close() {
    this.#pinned = false;
    this.#node.hidden = true;
    this.#node.removeAttribute("role");
  }

  #fill(token, on) {
    const id = token.ids.length === 1 ? `id ${token.ids[0]}` : `${token.ids.length} ids`;
    this.#node.replaceChildren(
      make("p", { class: "card-title" }, make("code", {}, visible(token.text)), make("span", { class: "quiet" }, id)),
      make("p", {}, howMade(token)),
    );
    if (token.rejected.length) {
      const drafts = token.rejected.map((draft) =>
        make("li", { value: draft.place }, make("code", {}, visible(draft.text))),
      );
      this.#node.append(make("p", { class: "label" }, "Rejected drafts"), make("ol", {}, ...drafts));
    }
    if (on) this.#node.append(...this.#actions(token, on));
    else this.#node.append(make("p", { class: "quiet" }, "Click or press Enter to fork here."));
  }

  #actions(token, on) {
    const done = (action) => () => {
      this.close();
      action();
    };
    const button = (words, action) => make("button", { type: "button", onclick: done(action) }, words);
    const drafts = token.rejected.map((_, index) => {
      const text = token.rejected.slice(0, index + 1).map((draft) => draft.text).join("");
      return button(`Go on from ${visible(text)}`, () => on.take(index + 1));
    });
    const text = make("textarea", { rows: 2, spellcheck: "false" });
    text.value = token.text;
    const form = make("form", {}, make("label", {}, make("span", {}, "Or put your own text here"), text), make("button", { type: "submit" }, "Go on from this text"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      done(() => on.write(text.value))();
    });
    return [button("Regenerate from here", on.again), ...drafts, form];
  }

  /** Below the token, or above it where there is no room, and inside the window. */
  #put(place) {
    this.#node.hidden = false;
    const [token, card] = [place.getClientRects()[0] ?? place.getBoundingClientRect(), this.#node.getBoundingClientRect()];
    const left = Math.max(MARGIN, Math.min(token.left, document.documentElement.clientWidth - card.width - MARGIN));
    const below = token.bottom + 4;
    const fits = below + card.height <= window.innerHeight || token.top < card.height + MARGIN;
    const top = fits ? below : token.top - card.height - 4;
    this.#node.style.left = `${left + window.scrollX}px`;
    this.#node.style.top = `${top + window.scrollY}px`;
  }
}
