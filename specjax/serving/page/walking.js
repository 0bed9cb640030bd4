/** Keys that walk through the tokens of an answer. The focus stays on the text as a whole; one token is the current. */

/**
 * @param {HTMLElement} text holds the tokens, and has the focus
 * @param {() => object[]} tokens what it holds
 * @param {{reach: (index: number) => void, open: (index: number) => void, leave: () => void}} on
 */
export function walk(text, tokens, on) {
  let current = null;
  const reach = (index) => {
    text.children[current]?.classList.remove("current");
    current = index;
    if (index == null) return;
    text.children[index].classList.add("current");
    text.children[index].scrollIntoView({ block: "nearest" });
    on.reach(index);
  };
  const steps = {
    ArrowRight: (at, all) => Math.min(at + 1, all.length - 1),
    ArrowLeft: (at) => Math.max(at - 1, 0),
    ArrowDown: (at, all) => nextRound(at, all),
    ArrowUp: (at, all) => previousRound(at, all),
    Home: () => 0,
    End: (_, all) => all.length - 1,
  };
  text.addEventListener("keydown", (event) => {
    const all = tokens();
    if (!all.length || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in steps) reach(current == null ? 0 : steps[event.key](current, all));
    else if ((event.key === "Enter" || event.key === " ") && current != null) on.open(current);
    else if (event.key === "Escape") on.leave();
    else return;
    event.preventDefault();
  });
  text.addEventListener("blur", () => reach(null));
}

function nextRound(at, all) {
  const found = all.findIndex((token, index) => index > at && begins(all, index));
  return found < 0 ? all.length - 1 : found;
}

function previousRound(at, all) {
  const found = all.findLastIndex((token, index) => index < at && begins(all, index));
  return Math.max(found, 0);
}

const begins = (all, index) => all[index].round !== all[index - 1]?.round;
