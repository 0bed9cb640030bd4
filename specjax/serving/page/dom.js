/** Makes elements. Texts become text nodes, never markup. */

export const byId = (id) => document.getElementById(id);

/**
 * @param {string} tag name of the element; one with "svg:" before it is of SVG
 * @param {object} attributes those named onEVENT listen; true is an empty value, and false, null and undefined are none
 * @param {...(Node|string)} children
 */
export function make(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** Says something to screen readers. */
export function announce(text) {
  byId("announcer").textContent = text;
}
