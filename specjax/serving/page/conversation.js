/** A conversation with its forks. Forks share the turns before them. */

/** What was asked, and the answers to it: one, or two with different settings. */
export class Turn {
  /**
   * @param {string} asked the user's text
   * @param {object[]} prefix tokens with which the answers begin, kept from another answer or typed
   * @param {number} seed
   * @param {Answer[]} answers
   */
  constructor(asked, prefix, seed, answers) {
    Object.assign(this, { asked, prefix, seed, answers });
  }

  /** The whole text of a lane's answer; a turn with one answer has the same for both. */
  textOf(lane) {
    return this.prefix.map((token) => token.text).join("") + this.answerOf(lane).text;
  }

  answerOf(lane) {
    return this.answers[lane] ?? this.answers[0];
  }
}

export class Conversation {
  #branches = [[]];
  #current = 0;

  get turns() {
    return this.#branches[this.#current];
  }

  add(turn) {
    this.#branches[this.#current] = [...this.turns, turn];
  }

  /** Go on differently at a turn; what there was stays as a branch of its own. */
  fork(index, turn) {
    this.#branches.push([...this.turns.slice(0, index), turn]);
    this.#current = this.#branches.length - 1;
  }

  /** The turns that stand in this place in branches that are alike before it, oldest first. */
  alternatives(index) {
    const alike = this.#branches.filter((branch) => this.#alike(branch, index));
    return [...new Set(alike.map((branch) => branch[index]))];
  }

  /** Change to the latest branch that has this turn. */
  choose(index, turn) {
    this.#current = this.#branches.findLastIndex((branch) => this.#alike(branch, index) && branch[index] === turn);
  }

  #alike(branch, index) {
    return branch.length > index && this.turns.slice(0, index).every((turn, each) => branch[each] === turn);
  }
}
