/** Shows a turn: what was asked, one answer or two side by side, and where it was forked. */

import { AnswerView } from "./answer_view.js";
import { compare } from "./comparison.js";
import { announce, make } from "./dom.js";

export class TurnView {
  #turn;
  #answers;
  #verdict = make("p", { class: "verdict" });
  #forks = make("nav", { class: "forks", "aria-label": "Forks of this turn" });
  #asked;
  #on;

  /**
   * @param {Turn} turn
   * @param {object} page see AnswerView
   * @param {{fork: Function, write: Function, ask: (text: string) => void}} on
   */
  constructor(turn, page, on) {
    [this.#turn, this.#on] = [turn, on];
    this.#answers = turn.answers.map((_, lane) => new AnswerView(turn, lane, page, on));
    this.#asked = make("div", { class: "asked", "aria-label": "You", role: "group" });
    const columns = make("div", { class: `answers of-${turn.answers.length}` }, ...this.#answers.map((view) => view.node));
    this.node = make("article", { class: "turn" }, this.#asked, this.#forks, this.#verdict, columns);
    this.#showAsked();
    this.update();
  }

  update() {
    this.#answers.forEach((view) => view.update());
    if (this.#answers.length < 2) return;
    const { parting, words } = compare(...this.#turn.answers);
    this.#answers.forEach((view) => view.part(parting));
    if (words.startsWith("Equal: ") && this.#verdict.textContent !== words) announce(words);
    this.#verdict.textContent = words;
    this.#verdict.classList.toggle("parts", parting != null);
  }

  /** Show which of several forks this is, with ways to the others. */
  showForks(alternatives, choose) {
    const at = alternatives.indexOf(this.#turn);
    const step = (to, words, sign) =>
      make("button", { type: "button", "aria-label": words, disabled: !alternatives[to], onclick: () => choose(alternatives[to]) }, sign);
    const buttons = [step(at - 1, "Fork before", "‹"), `Fork ${at + 1} of ${alternatives.length}`, step(at + 1, "Fork after", "›")];
    this.#forks.replaceChildren(...(alternatives.length > 1 ? buttons : []));
  }

  #showAsked() {
    const edit = make("button", { type: "button", class: "small", onclick: () => this.#editAsked() }, "Edit");
    const text = make("div", { class: "asked-text" }, this.#turn.asked || "(nothing: the text goes on)");
    this.#asked.replaceChildren(text, edit);
  }

  #editAsked() {
    const text = make("textarea", { rows: 4, "aria-label": "Your text" });
    text.value = this.#turn.asked;
    const cancel = make("button", { type: "button", onclick: () => this.#showAsked() }, "Cancel");
    const form = make("form", {}, text, make("div", { class: "dialog-row" }, cancel, make("button", { type: "submit", class: "main" }, "Ask again")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#showAsked();
      this.#on.ask(text.value);
    });
    this.#asked.replaceChildren(form);
    text.focus();
  }
}
