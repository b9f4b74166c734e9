// A value for each field.

import { byId, element } from "./dom.js";
import { ask, model, show } from "./server.js";

/** name -> {facts, input, state} */
export const fields = new Map();
const SUGGESTIONS = 20;

/** A frequent value of a field; for a number one from the middle. */
export function exampleOf(facts) {
  if (facts.number) return facts.examples[Math.floor(facts.examples.length / 2)] ?? "";
  if (facts.separator) return facts.examples.slice(0, 2).join(facts.separator);
  return facts.examples[0] ?? "";
}

export function addField(facts, number) {
  const id = `field-${number}`;
  const box = element("div", "field"), label = element("label", "", `${facts.name} `), input = element("input");
  const state = element("p", "state");
  label.append(element("small", "", facts.hint));
  label.htmlFor = id;
  state.id = `${id}-state`;
  Object.assign(input, { id, type: facts.number ? "number" : "text", placeholder: "missing" });
  if (facts.number) input.step = "any";
  input.setAttribute("aria-describedby", state.id);
  input.setAttribute("autocapitalize", "off");
  input.spellcheck = false;
  input.dataset.field = facts.name;
  box.append(label, input, state);
  if (facts.complete) {
    const list = element("datalist");
    list.id = `${id}-list`;
    input.setAttribute("list", list.id);
    input.addEventListener("focus", () => complete(facts, input, list));
    box.append(list);
    input.addEventListener("input", () => complete(facts, input, list));
  }
  fields.set(facts.name, { facts, input, state });
  byId("fields").append(box);
}

/** Gives every field a value. */
export function fill(valueOf) {
  for (const { facts, input } of fields.values()) input.value = valueOf(facts);
}

/** The row as it stands in the form; an empty field is missing. */
export function rowNow() {
  const row = {};
  for (const [name, { input }] of fields) if (input.value.trim()) row[name] = input.value;
  return row;
}

/** Known values for what stands in a field, or behind the last separator of a set. */
async function complete(facts, input, list) {
  const cut = facts.separator ? input.value.lastIndexOf(facts.separator) + facts.separator.length : 0;
  const before = facts.separator && input.value.includes(facts.separator) ? input.value.slice(0, cut) : "";
  const prefix = input.value.slice(before.length), arm = armOf(facts.name);
  const asked = new URLSearchParams({ field: facts.name, prefix, limit: SUGGESTIONS, arm });
  const ticket = (list.dataset.ticket = String(Number(list.dataset.ticket || 0) + 1));
  try {
    const found = await ask(`/values?${asked}`);
    if (list.dataset.ticket !== ticket) return;
    list.replaceChildren(...found.values.map((value) => Object.assign(element("option"), { value: before + value })));
  } catch (problem) {
    show(problem, byId("row-error"));
  }
}

/** The first arm that knows a field. */
const armOf = (name) => model.arms.find((arm) => arm.fields.some((facts) => facts.name === name)).name;
