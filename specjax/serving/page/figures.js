/** What the drafts of an answer brought, counted token by token from how each was made. */

export class Figures {
  tokens = 0;
  rounds = 0;
  /** By place in the round. */
  drafted = [];
  accepted = [];
  /** Accepted drafts of a round whose last token, the model's own, has not come. */
  standing = 0;

  /** @returns {number} the round of the token, from 1 on; 0 for the first token, which the prompt brings */
  add(token) {
    this.tokens += 1;
    if (this.tokens === 1) return 0;
    if (this.standing === 0) this.rounds += 1;
    if (token.place > 0) {
      this.#count(token.place, true);
      this.standing = token.place;
    } else {
      token.rejected.forEach((draft) => this.#count(draft.place, false));
      this.standing = 0;
    }
    return this.rounds;
  }

  /** The server's own figures, once the text has ended: a round that is cut off leaves drafts of which no token tells. */
  settle({ rounds, drafted_by_position, accepted_by_position }) {
    Object.assign(this, { rounds, drafted: drafted_by_position, accepted: accepted_by_position });
  }

  get tokensPerRound() {
    return this.rounds ? (this.tokens - 1) / this.rounds : 0;
  }

  get draftedInAll() {
    return sum(this.drafted);
  }

  get acceptance() {
    return this.draftedInAll ? sum(this.accepted) / this.draftedInAll : 0;
  }

  #count(place, stood) {
    this.drafted[place - 1] = (this.drafted[place - 1] ?? 0) + 1;
    this.accepted[place - 1] = (this.accepted[place - 1] ?? 0) + (stood ? 1 : 0);
  }
}

const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
