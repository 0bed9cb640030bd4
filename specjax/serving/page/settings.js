/** The form of settings: fills it in, reads it, and keeps it for the next visit. */

import { byId, make } from "./dom.js";

const STORE = "specjax-settings";
const RULES = { coupled: "Coupled", rejection: "Rejection", block: "Block" };
const RULES_SAY = {
  coupled: "The very text of plain sampling with this seed, whatever is drafted.",
  rejection: "The model's distribution, draft by draft. More drafts are accepted; the text depends on the drafts.",
  block: "The model's distribution, a round's drafts judged together. The text depends on the drafts.",
};
/** The value that stands for all drafters. It is no file's name, and not empty: browsers choose no empty value. */
const ALL = "/";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/** What a choice of drafts is called. */
export function laneWords({ draft, draft_by, accept }) {
  if (draft === 0) return "no drafts";
  const drafts = draft === "auto" ? "drafts: auto" : draft === 1 ? "1 draft" : `${draft} drafts`;
  return [drafts, ...(draft_by?.length === 1 ? draft_by : []), accept].join(" · ");
}

export class Settings {
  #form = byId("settings-form");
  #drafters;
  #first;

  /**
   * @param {object} model the model as /v1/models has it
   * @param {object} defaults of the server
   */
  constructor(model, defaults) {
    const most = model.most_drafts;
    this.#drafters = most ? model.drafters : [];
    this.#lane("a", most, "Speculation");
    this.#lane("b", most, "Speculation, second");
    const { draft, draft_by, accept: _, ...sampling } = defaults;
    const by = draft_by?.length === 1 ? draft_by[0] : ALL;
    const more = { max_tokens: Math.min(256, model.context_length), seed: 1, stop: "", system: "", order: "together" };
    const lanes = { a_draft: draft, a_draft_by: by, a_accept: "coupled", b_draft: 0, b_draft_by: by, b_accept: "coupled" };
    this.#first = { ...sampling, ...more, ...lanes, compare: false, new_seed: true };
    this.#fill(this.#first);
    this.#fill(JSON.parse(localStorage.getItem(STORE) ?? "{}"));
    byId("system-field").hidden = !model.chat_template;
    this.#form.addEventListener("input", () => this.#changed());
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    byId("reset-settings").addEventListener("click", () => {
      this.#fill(this.#first);
      this.#changed();
    });
    this.#changed();
  }

  /** Whether all of it can be used; shows what cannot. */
  check() {
    if (!this.#form.checkValidity()) byId("settings").open = true;
    return this.#form.reportValidity();
  }

  /** What holds for the next answers; draws their seed if there is to be a new one. */
  read() {
    if (this.#value("new_seed")) this.#put("seed", crypto.getRandomValues(new Uint32Array(1))[0]);
    const number = Object.fromEntries(NUMBERS.map((name) => [name, Number(this.#value(name))]));
    const { seed, ...sampling } = number;
    const stop = this.#value("stop").split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n"));
    const lanes = ["a", "b"].slice(0, this.#value("compare") ? 2 : 1).map((name) => this.#readLane(name));
    if (stop.length) sampling.stop = stop;
    return { lanes, sampling, seed, inTurn: this.#value("order") === "in-turn", system: this.#value("system") };
  }

  #readLane(name) {
    const draft = this.#value(`${name}_draft`);
    const lane = { draft: draft === "auto" ? draft : Number(draft), accept: this.#value(`${name}_accept`) };
    if (this.#drafters.length < 2) return lane;
    const by = this.#value(`${name}_draft_by`);
    return { ...lane, draft_by: by === ALL ? this.#drafters : [by] };
  }

  #lane(name, most, title) {
    const choice = (field, value, words) => {
      const input = make("input", { type: "radio", name: `${name}_${field}`, value, required: true });
      return make("label", {}, input, make("span", {}, words));
    };
    const depths = Array.from({ length: most }, (_, index) => [index + 1, String(index + 1)]);
    const drafts = [[0, "Off"], ...depths, ...(most ? [["auto", "Auto"]] : [])];
    const group = (label, choices) => make("div", { class: "choices", role: "radiogroup", "aria-label": label }, ...choices);
    const drafters = [[ALL, "All"], ...this.#drafters.map((each) => [each, each])];
    const several = [
      make("p", { class: "label" }, "Drafter"),
      group("Drafter", drafters.map(([value, words]) => choice("draft_by", value, words))),
    ];
    byId(`lane-${name}`).append(
      make("legend", {}, make("span", { class: `badge lane-${name}` }, name.toUpperCase()), ` ${title}`),
      make("p", { class: "label" }, most ? "Drafts a round" : "The server has no drafter."),
      group("Drafts a round", drafts.map(([value, words]) => choice("draft", value, words))),
      ...(this.#drafters.length > 1 ? several : []),
      make("p", { class: "label" }, "Acceptance"),
      group("Acceptance", Object.entries(RULES).map(([value, words]) => choice("accept", value, words))),
      make("p", { class: "quiet rule", id: `${name}-rule` }),
    );
  }

  #fill(values) {
    for (const [name, value] of Object.entries(values)) this.#put(name, value);
  }

  #changed() {
    const names = [...new Set([...this.#form.elements].map((field) => field.name).filter(Boolean))];
    localStorage.setItem(STORE, JSON.stringify(Object.fromEntries(names.map((name) => [name, this.#value(name)]))));
    const compare = this.#value("compare");
    for (const id of ["lane-b", "order-field"]) byId(id).hidden = !compare;
    for (const lane of ["a", "b"]) byId(`${lane}-rule`).textContent = RULES_SAY[this.#value(`${lane}_accept`)];
  }

  #value(name) {
    const field = this.#form.elements[name];
    return field.type === "checkbox" ? field.checked : field.value;
  }

  /** Values of another visit may not be there any more, as with another model: then what there is stays. */
  #put(name, value) {
    const field = this.#form.elements[name];
    if (!field) return;
    if (field.type === "checkbox") field.checked = value;
    else if (!(field instanceof RadioNodeList) || [...field].some((each) => each.value === String(value))) field.value = value;
  }
}
