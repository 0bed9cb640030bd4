/** Puts the page together. */

import { Answer, FINISHED } from "./answer.js";
import { Api } from "./api.js";
import { Conversation, Turn } from "./conversation.js";
import { announce, byId } from "./dom.js";
import { askForKey } from "./key_dialog.js";
import { legend } from "./legend.js";
import { promptOf, tokenIds } from "./prompt.js";
import { Settings } from "./settings.js";
import { TokenCard } from "./token_card.js";
import { TurnView } from "./turn_view.js";

const RETRY_SECONDS = 3;
const UNAUTHORIZED = 401;

class App {
  #api = new Api();
  #card = new TokenCard();
  #conversation = new Conversation();
  #views = new Map();
  #running = new Set();
  #model;
  #settings;

  async start() {
    byId("settings").open = matchMedia("(min-width: 60rem)").matches;
    byId("open-key").onclick = () => this.#newKey("");
    byId("new-conversation").onclick = () => this.#clear();
    byId("stop").onclick = () => this.#stop();
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      const sends = event.ctrlKey || event.metaKey || (this.#model?.chat_template && !event.shiftKey);
      if (event.key !== "Enter" || !sends || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    await this.#connect();
  }

  /** Learn of the model; wait for the server if it is not there. */
  async #connect() {
    try {
      const [models, props] = await Promise.all([this.#api.get("v1/models"), this.#api.get("props")]);
      this.#banner("");
      byId("open-key").hidden = !this.#api.key;
      if (this.#model) return;
      this.#model = models.data[0];
      this.#settings = new Settings(this.#model, props.defaults);
      this.#introduce();
    } catch (error) {
      this.#trouble(error);
    }
  }

  #introduce() {
    const { id, architecture, context_length, drafters, most_drafts, chat_template } = this.#model;
    byId("model-name").textContent = id;
    const by = drafters.join(" and ");
    const drafts = by ? `drafted for by ${by}, up to ${most_drafts} a round` : "without a drafter";
    byId("model-facts").textContent = `${architecture} · ${context_length} tokens · ${drafts}`;
    byId("legend").replaceChildren(...legend(most_drafts));
    const hints = chat_template
      ? ["Message", "Enter sends, Shift+Enter begins a line."]
      : ["Text to be continued", "Ctrl+Enter sends. The model has no chat template and continues your text."];
    byId("prompt-label").textContent = hints[0];
    byId("prompt-hint").textContent = hints[1];
    byId("prompt").classList.toggle("code", !chat_template);
    byId("prompt").focus();
  }

  #send() {
    const field = byId("prompt");
    const first = !this.#conversation.turns.length;
    if (!this.#settings || this.#running.size || (!field.value && (first || this.#model.chat_template))) return;
    if (this.#ask(field.value, [], (turn) => this.#conversation.add(turn))) field.value = "";
  }

  /** Make a turn, put it into the conversation by `place`, and get its answers. */
  #ask(asked, prefix, place) {
    if (!this.#settings.check()) return false;
    this.#stop();
    const wanted = this.#settings.read();
    const turn = new Turn(asked, prefix, wanted.seed, wanted.lanes.map((lane) => new Answer(lane)));
    place(turn);
    this.#show();
    this.#views.get(turn).node.scrollIntoView({ block: "nearest" });
    this.#answer(turn, this.#conversation.turns, wanted);
    return true;
  }

  async #answer(turn, turns, { sampling, seed, system, inTurn }) {
    const form = { chat: this.#model.chat_template, system };
    this.#running.add(turn);
    this.#showRunning();
    const view = this.#views.get(turn);
    const run = (answer, lane) => {
      const body = async (signal) => {
        const prompt = await promptOf(this.#api, form, turns, lane, signal);
        return { prompt, seed, ...sampling, ...answer.lane };
      };
      return answer.run(this.#api, body, () => this.#follow(view));
    };
    if (inTurn) for (const [lane, answer] of turn.answers.entries()) await run(answer, lane);
    else await Promise.all(turn.answers.map(run));
    this.#running.delete(turn);
    this.#showRunning();
    const failed = turn.answers.find((answer) => answer.state === "failed");
    if (failed) this.#trouble(failed.error);
    else announce(`The answer has ended. ${turn.answers.map((each) => `${each.tokens.length} tokens`).join(", ")}.`);
  }

  #fork(turn, prefix) {
    this.#ask(turn.asked, prefix, (other) => this.#conversation.fork(this.#conversation.turns.indexOf(turn), other));
  }

  async #write(turn, prefix, text) {
    try {
      const ids = text ? await tokenIds(this.#api, text, false) : [];
      const typed = ids.length ? [{ ids, text, place: 0, rejected: [], typed: true }] : [];
      this.#fork(turn, [...prefix, ...typed]);
    } catch (error) {
      this.#trouble(error);
    }
  }

  /** Show the turns of the current branch; those that were shown before keep their nodes. */
  #show() {
    const page = { most: this.#model.most_drafts, card: this.#card, prose: this.#model.chat_template };
    const nodes = this.#conversation.turns.map((turn, index) => {
      if (!this.#views.has(turn)) {
        const on = {
          fork: (prefix) => this.#fork(turn, prefix),
          write: (prefix, text) => this.#write(turn, prefix, text),
          ask: (text) => this.#ask(text, [], (other) => this.#conversation.fork(index, other)),
        };
        this.#views.set(turn, new TurnView(turn, page, on));
      }
      const view = this.#views.get(turn);
      view.showForks(this.#conversation.alternatives(index), (other) => {
        this.#conversation.choose(index, other);
        this.#show();
      });
      return view.node;
    });
    byId("conversation").replaceChildren(...nodes);
  }

  /** Show what has come, and stay at the end of the page if it was there. */
  #follow(view) {
    const page = document.documentElement;
    const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 40;
    view.update();
    if (atEnd) page.scrollTop = page.scrollHeight;
  }

  #showRunning() {
    byId("stop").hidden = !this.#running.size;
    byId("send").hidden = this.#running.size > 0;
  }

  #stop() {
    for (const turn of this.#running) turn.answers.forEach((answer) => FINISHED.has(answer.state) || answer.stop());
  }

  #clear() {
    this.#stop();
    this.#conversation = new Conversation();
    this.#views.clear();
    byId("conversation").replaceChildren();
    byId("prompt").focus();
  }

  /** Say what is wrong where it concerns the whole page: the server is gone, or wants a key. */
  #trouble(error) {
    byId("open-key").hidden = error.status !== UNAUTHORIZED && !this.#api.key;
    if (error.status === UNAUTHORIZED) this.#newKey(this.#api.key ? "The server does not take this key." : "");
    else if (!this.#model || error.status === 0) {
      this.#banner(error.message);
      setTimeout(() => this.#connect(), 1000 * RETRY_SECONDS);
    }
  }

  #newKey(problem) {
    askForKey(problem, (key) => {
      this.#api.key = key;
      this.#connect();
    });
  }

  #banner(words) {
    byId("banner").textContent = words;
    byId("banner").hidden = !words;
  }
}

new App().start();
