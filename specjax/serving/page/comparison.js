/** Whether two answers to one prompt say the same. */

import { FINISHED } from "./answer.js";

/**
 * @returns {{parting: number|null, words: string}} the number of the first token that differs, from 0 on, if one does
 */
export function compare(left, right) {
  const shorter = Math.min(left.tokens.length, right.tokens.length);
  const over = FINISHED.has(left.state) && FINISHED.has(right.state);
  for (let index = 0; index < shorter; index += 1) {
    if (left.tokens[index].ids[0] !== right.tokens[index].ids[0]) {
      const drawn = [left, right].some(({ lane }) => lane.draft !== 0 && lane.accept !== "coupled");
      const hint = drawn ? " With the rule coupled they would be the same." : "";
      return { parting: index, words: `The texts part at token ${index + 1}.${hint}` };
    }
  }
  if (!over) return { parting: null, words: shorter ? `Equal so far: ${tokens(shorter)}.` : "" };
  if (left.tokens.length !== right.tokens.length) {
    return { parting: null, words: `Equal as far as both go: ${tokens(shorter)}. Then one of them was broken off.` };
  }
  return { parting: null, words: `Equal: both texts are the same ${tokens(shorter)}.` };
}

const tokens = (count) => (count === 1 ? "1 token" : `${count} tokens`);
