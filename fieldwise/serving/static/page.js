// The page of `fieldwise serve`: fetches the models, fills the page, and listens.

import { watch } from "./abtest.js";
import { byId, element } from "./dom.js";
import { openEntrance, token } from "./entrance.js";
import { addField, exampleOf, fields, fill } from "./form.js";
import { exampleCandidates, rankPasted } from "./ranking.js";
import { changed, update } from "./reasons.js";
import { loadModel, model } from "./server.js";

function aboutModel() {
  const described = model.arms.map((arm) => {
    const auc = arm.metrics?.test?.auc;
    const share = model.arms.length > 1 ? `, ${Number((arm.share * 100).toFixed(1))} % of the traffic` : "";
    const name = arm.name === arm.model ? arm.name : `${arm.name} (${arm.model})`;
    return `${name}${share}${Number.isFinite(auc) ? `, AUC ${auc.toFixed(4)} on its test rows` : ""}`;
  });
  const beside = ["history", "time", "raw"];
  const count = [...fields.values()].filter(({ facts }) => !beside.includes(facts.kind)).length;
  byId("model").textContent = `Serving ${described.join("; ")}. ${count} fields.`;
}

function offerArms() {
  const one = (value, text) => Object.assign(element("option", "", text), { value });
  const by = model.split.field ? `the one that its ${model.split.field} is assigned to` : "drawn for each request";
  const choices = model.arms.map((arm) => one(arm.name, arm.name));
  byId("arm").replaceChildren(one("", by), ...choices);
  byId("arm-box").hidden = model.arms.length < 2;
}

function fillAll(valueOf) {
  fill(valueOf);
  update();
}

async function start() {
  try {
    await loadModel();
  } catch (problem) {
    byId("model").textContent = "";
    if (problem.status !== 401) byId("page-error").textContent = problem.message;
    else openEntrance();
    byId("try").hidden = byId("rank").hidden = byId("test").hidden = true;
    return;
  }
  byId("page-error").textContent = "";
  byId("try").hidden = byId("rank").hidden = byId("test").hidden = false;
  fields.clear();
  byId("fields").replaceChildren();
  const all = new Map();
  for (const arm of model.arms) for (const facts of arm.fields) if (!all.has(facts.name)) all.set(facts.name, facts);
  [...all.values()].forEach(addField);
  aboutModel();
  offerArms();
  byId("candidates").value = exampleCandidates();
  fillAll(exampleOf);
  watch();
}

byId("entrance").addEventListener("submit", (event) => {
  event.preventDefault();
  token.write(byId("token").value.trim());
  byId("entrance").hidden = true;
  start();
});
byId("row").addEventListener("submit", (event) => { event.preventDefault(); update(); });
byId("fields").addEventListener("input", changed);
byId("example").addEventListener("click", () => fillAll(exampleOf));
byId("clear").addEventListener("click", () => fillAll(() => ""));
byId("arm").addEventListener("change", update);
byId("candidates-form").addEventListener("submit", (event) => { event.preventDefault(); rankPasted(); });
byId("candidates").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); rankPasted(); }
});
document.addEventListener("visibilitychange", () => { if (model && !document.hidden) watch(); });
start();
