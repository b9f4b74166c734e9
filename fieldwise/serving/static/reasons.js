// The probability of the row in the form, and its reasons.

import { drawReasons } from "./charts.js";
import { byId, tableRow } from "./dom.js";
import { fields, rowNow } from "./form.js";
import { rankAgain } from "./ranking.js";
import { ask, model, show } from "./server.js";
import { percent, signed } from "./words.js";

const DEBOUNCE = 200, MOST_PAIRS = 10;
let waiting = 0, controller = new AbortController();

/** Answers once nothing was typed for a moment. */
export function changed() {
  clearTimeout(waiting);
  waiting = setTimeout(update, DEBOUNCE);
}

/** The probability of the row as it stands, and its reasons. */
export async function update() {
  clearTimeout(waiting);
  controller.abort();
  const own = (controller = new AbortController());
  const row = rowNow();
  document.body.classList.add("waiting");
  try {
    const found = await ask("/predict", { rows: [row], arm: byId("arm").value, log: false }, own.signal);
    showProbability(found.probabilities[0], found.arms[0]);
    const why = await ask("/explain", { row, arm: found.arms[0] }, own.signal);
    // The pairs of a model without any are all 0.
    if (why.pairs.every((pair) => !pair.logit)) why.pairs = [];
    showStates(why.values);
    showPairs(why.pairs);
    byId("row-error").textContent = "";
    rankAgain();
    await drawReasons(why);
  } catch (problem) {
    if (own !== controller) return;
    show(problem, byId("row-error"));
    if (problem.after) waiting = setTimeout(update, problem.after * 1000);
  } finally {
    if (own === controller) document.body.classList.remove("waiting");
  }
}

function showProbability(probability, arm) {
  const place = byId("probability");
  place.textContent = percent(probability);
  place.dataset.exact = probability;
  byId("answer-note").textContent = model.arms.length > 1 ? `from the model “${arm}”` : "";
}

function showStates(values) {
  for (const [name, { facts, input, state }] of fields) {
    const unseen = (values[name] ?? "").endsWith(" (other)") && !input.value.endsWith(" (other)");
    const other = facts.separator ? "other: has a value never seen in training" : "other: never seen in training";
    state.textContent = input.validity.badInput ? "not a number: missing" : unseen ? other : "";
  }
}

function showPairs(pairs) {
  const rows = pairs.slice(0, MOST_PAIRS).map((pair) => tableRow([pair.fields.join(" × "), signed(pair.logit)], [1]));
  if (!rows.length) rows.push(tableRow(["This model looks at no pairs.", ""], [1]));
  document.querySelector("#pairs tbody").replaceChildren(...rows);
}
