/** Says what the shades mean. */

import { make } from "./dom.js";
import { shade } from "./shades.js";

const SHOWN = 6;

export function legend(most) {
  const sample = (kind, text) => make("span", { class: `token ${kind}`, "aria-hidden": "true" }, text);
  const item = (words, ...samples) => make("span", { class: "legend-item" }, ...samples, make("span", {}, words));
  const all = Array.from({ length: most }, (_, index) => index + 1);
  const places = most <= SHOWN ? all : [1, 2, 3, Math.ceil(most / 2), most];
  const drafts = places.map((place) => {
    const swatch = sample("drafted", String(place));
    shade(swatch, place, most);
    return swatch;
  });
  return [
    item("the model's own", sample("own", "text")),
    ...(most ? [item("accepted draft, by its place in the round", ...drafts)] : []),
    ...(most ? [item("drafts were rejected here: point at them", sample("own parted", "text"))] : []),
    item("kept at a fork", sample("kept", "text")),
    item("put in by you", sample("typed", "text")),
  ];
}
