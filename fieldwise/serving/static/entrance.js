// The token of a server that asks for one; kept until the tab is closed.

import { byId } from "./dom.js";

export const token = {
  read: () => sessionStorage.getItem("fieldwise token") || "",
  write: (text) => sessionStorage.setItem("fieldwise token", text),
};

export function openEntrance() {
  byId("entrance-error").textContent = token.read() ? "The server refused this token." : "";
  if (!byId("entrance").hidden) return;
  byId("entrance").hidden = false;
  byId("token").focus();
}
