/** What is said of a token, for eyes and for screen readers. */

/** A text in which white space can be seen. */
export function visible(text) {
  if (!text) return "(no text)";
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (spaces) => "·".repeat(spaces.length));
}

/** How a token was made. */
export function howMade(token) {
  if (token.typed) return "Put in by you";
  if (token.place > 0) return `Draft ${token.place} of round ${token.round}, accepted`;
  if (token.round === 0) return "The model's first, which the prompt brings";
  if (token.rejected.length) return `The model's own in round ${token.round}, in place of a draft`;
  return `The model's own in round ${token.round}, after its drafts`;
}

/** All of it in a sentence. */
export function spoken(token) {
  const rejected = token.rejected.map((draft) => visible(draft.text)).join(", ");
  return `${visible(token.text)}: ${howMade(token)}${rejected ? `. Rejected: ${rejected}` : ""}`;
}
