/** Asks for the server's key. */

import { byId } from "./dom.js";

const dialog = byId("key-dialog");

/** Show the dialog; what it says if the key before was wrong. Call `use` with the key that is given. */
export function askForKey(problem, use) {
  byId("key-problem").textContent = problem;
  byId("key-problem").hidden = !problem;
  byId("key").value = "";
  byId("key-form").onsubmit = (event) => {
    event.preventDefault();
    dialog.close();
    use(byId("key").value.trim());
  };
  byId("key-cancel").onclick = () => dialog.close();
  if (!dialog.open) dialog.showModal();
}
