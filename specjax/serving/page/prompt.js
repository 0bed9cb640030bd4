/** From a conversation to the token ids that the model goes on from. */

/**
 * Ids and not text: an answer that is continued is continued from the very tokens that it had, also inside a word.
 *
 * @param {Api} api
 * @param {{chat: boolean, system: string}} form whether the model has a chat template, and the system prompt
 * @param {Turn[]} turns up to the one that is answered
 * @param {number} lane whose answers count
 */
export async function promptOf(api, form, turns, lane, signal) {
  const text = form.chat ? await rendered(api, form.system, turns, lane, signal) : joined(turns, lane);
  const ids = await tokenIds(api, text, true, signal);
  return [...ids, ...turns.at(-1).prefix.flatMap((token) => token.ids)];
}

/** Ids of a text; those that stand before every text come with it if it begins one. */
export async function tokenIds(api, text, begins, signal) {
  const body = { content: text, add_special: begins, parse_special: begins };
  return (await api.post("tokenize", body, signal)).tokens;
}

async function rendered(api, system, turns, lane, signal) {
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const turn of turns.slice(0, -1)) {
    messages.push({ role: "user", content: turn.asked }, { role: "assistant", content: turn.textOf(lane) });
  }
  messages.push({ role: "user", content: turns.at(-1).asked });
  return (await api.post("apply-template", { messages }, signal)).prompt;
}

function joined(turns, lane) {
  return turns.slice(0, -1).map((turn) => turn.asked + turn.textOf(lane)).join("") + turns.at(-1).asked;
}
