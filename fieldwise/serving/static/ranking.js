// Candidates, the most probable first.

import { byId, element, tableRow } from "./dom.js";
import { fields, rowNow } from "./form.js";
import { parseCandidates, quote } from "./pasted.js";
import { ask, model, show } from "./server.js";
import { percent } from "./words.js";

const CANDIDATE_NAMES = /item|product|advert|(^|_)(ad|app)(_|$)|movie|banner|creative|offer|song|video|article/i;
let candidates = [], rankings = 0;

/** Ranks the same candidates again, for another row. */
export function rankAgain() {
  if (!byId("ranking").hidden) rank(candidates);
}

/** An example csv: frequent values of the field that is most likely the item, and of a number. */
export function exampleCandidates() {
  const all = [...fields.values()].map((field) => field.facts);
  const texts = all.filter((facts) => facts.complete && !facts.separator && facts.examples.length > 1);
  const named = texts.filter((facts) => CANDIDATE_NAMES.test(facts.name));
  const others = texts.filter((facts) => facts.name !== model.split.field);
  const first = (named.length ? named : others.length ? others : all).reduce((a, b) => (b.size > a.size ? b : a));
  const second = all.find((facts) => facts.number && facts !== first && facts.examples.length > 1);
  const columns = second ? [first, second] : [first];
  const lines = first.examples.slice(0, 5).map((_, number) =>
    columns.map((facts) => quote(facts.examples[number % facts.examples.length])).join(","));
  return [columns.map((facts) => quote(facts.name)).join(","), ...lines].join("\n");
}

async function rank(asked) {
  const place = byId("rank-error"), own = ++rankings;
  try {
    const found = await ask("/rank", { context: rowNow(), candidates: asked, arm: byId("arm").value, log: false });
    if (own !== rankings) return;
    candidates = asked;
    showRanking(found);
  } catch (problem) {
    show(problem, place);
    if (problem.after) place.textContent += " Press Rank again in a moment.";
  }
}

function showRanking(found) {
  const best = found.candidates[0]?.probability || 1;
  const rows = found.candidates.map(({ index, probability }, place) => {
    const bar = Object.assign(element("meter"), { max: best, value: probability });
    bar.setAttribute("aria-hidden", "true");
    const shown = Object.entries(candidates[index]).map(([name, value]) => `${name}: ${value ?? "missing"}`).join(", ");
    const made = tableRow([String(place + 1), shown || "(the row above)", [percent(probability), bar]], [0, 2]);
    made.dataset.index = index;
    return made;
  });
  document.querySelector("#ranking tbody").replaceChildren(...rows);
  const from = model.arms.length > 1 ? `, by the model “${found.arm}”` : "";
  byId("ranking-note").textContent = `The most probable first${from}; it follows the row above`;
  byId("ranking").hidden = false;
}

/** Ranks what stands in the box. */
export function rankPasted() {
  byId("rank-error").textContent = "";
  try {
    rank(parseCandidates(byId("candidates").value).flat());
  } catch (problem) {
    byId("rank-error").textContent = problem.message;
  }
}
