/** Shades of places in a round: from light to dark as drafts lie deeper, and a bar that grows with them. */

const TALLEST = 5;

/** Give a node the shade of a place, out of so many. */
export function shade(node, place, most) {
  const depth = most > 1 ? (place - 1) / (most - 1) : 0;
  node.style.setProperty("--depth", `${Math.round(100 * depth)}%`);
  node.style.setProperty("--bar", `${(TALLEST * place) / most}px`);
}
