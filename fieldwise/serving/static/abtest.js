// The current state of an A/B test.

import { drawDays } from "./charts.js";
import { byId, element, tableRow } from "./dom.js";
import { ask, show } from "./server.js";
import { percent, signedPercent } from "./words.js";

const POLL = 5000;
let polling = 0;

/** Asks for the report again and again while the page is in sight. */
export async function watch() {
  clearTimeout(polling);
  if (document.hidden) return;
  let again = POLL;
  try {
    showTest(await ask("/abtest"));
    byId("test-error").textContent = "";
  } catch (problem) {
    // A server may have no log; then, or without a token, asking again is useless.
    byId("test-state").textContent = problem.status === 409 ? `No test to watch: ${problem.message}.` : "";
    if (problem.status !== 409) show(problem, byId("test-error"));
    if (problem.status === 409 || problem.status === 401) again = 0;
  }
  clearTimeout(polling);
  if (again) polling = setTimeout(watch, again);
}

async function showTest(report) {
  const now = new Date().toLocaleTimeString("en-GB");
  byId("test-body").hidden = !report.arms.length;
  byId("test-state").textContent = report.arms.length
    ? `Live: asked every ${POLL / 1000} seconds, last at ${now}.`
    : `Nothing was shown yet (asked at ${now}). Requests to /predict and /rank appear here.`;
  if (!report.arms.length) return;
  const sure = `${Math.round(report.confidence * 100)} %`;
  const whole = (number) => number.toLocaleString("en");
  const arms = report.arms.map((arm) => tableRow(
    [arm.arm, whole(arm.units), whole(arm.shown), whole(arm.clicks), arm.ctr === null ? "–" : percent(arm.ctr)], [1, 2, 3, 4]));
  document.querySelector("#arms tbody").replaceChildren(...arms);
  byId("units").textContent = report.split_field ? `Values of ${report.split_field}` : "Requests";
  byId("verdicts").replaceChildren(...report.comparisons.map((one) => element("li", "", verdictOf(one, sure))));
  byId("warnings").replaceChildren(...report.warnings.map((text) => element("li", "", text)));
  byId("days-note").textContent = `In %, days in UTC; the bars are ${sure} intervals.`;
  await drawDays(report);
}

function verdictOf(one, sure) {
  if (one.improvement === null) return `${one.arm} against ${one.baseline}: too little data for a comparison.`;
  const end = one.decided ? "" : " This may be chance.";
  const between = `between ${signedPercent(one.low)} and ${signedPercent(one.high)} with ${sure} confidence`;
  return `${one.arm} against ${one.baseline}: CTR ${signedPercent(one.improvement)}, ${between}.${end}`;
}
