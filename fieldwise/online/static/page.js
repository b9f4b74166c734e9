"use strict";
// The page of `fieldwise serve`. Texts of the server are only ever set as text, never as HTML.

const byId = (id) => document.getElementById(id);
const DEBOUNCE = 200, POLL = 5000, MOST_BARS = 20, MOST_PAIRS = 10, SUGGESTIONS = 20;
const CANDIDATE_NAMES = /item|product|advert|(^|_)(ad|app)(_|$)|movie|banner|creative|offer|song|video|article/i;
const BLUE = "#1f5fa8", RED = "#b3261e", ARM_COLOURS = [BLUE, "#c05a00", "#2e7d4f", "#7b4fa3", "#6b6b6b"];

/** An element with a class and a text. */
function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** A row of a table: texts, or elements; `numbers` are the places that stand at the right. */
function tableRow(cells, numbers) {
  const row = element("tr");
  cells.forEach((cell, place) => {
    const made = element("td", numbers.includes(place) ? "number" : "");
    made.append(...[cell].flat());
    row.append(made);
  });
  return row;
}

function percent(share) {
  const distance = Math.min(share, 1 - share) * 100;
  const digits = distance > 0 ? Math.max(1, Math.min(8, 2 - Math.floor(Math.log10(distance)))) : 1;
  return `${(share * 100).toFixed(digits)} %`;
}

/** A number with its sign; small ones keep two digits that say something. */
function signed(number, digits = 3) {
  const size = Math.abs(number), small = size > 0 ? Math.ceil(-Math.log10(size)) + 1 : 0;
  return (number < 0 ? "−" : "+") + size.toFixed(Math.max(digits, Math.min(small, 7)));
}

const signedPercent = (share) => `${signed(share * 100, 1)} %`;
const shorter = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// ---- Asking the server

class Problem extends Error {
  constructor(status, text, after) {
    super(text);
    this.status = status;
    this.after = after;
  }
}

const token = {
  read: () => sessionStorage.getItem("fieldwise token") || "",
  write: (text) => sessionStorage.setItem("fieldwise token", text),
};

/** The answer to a GET, or with a body to a POST, as JSON; a Problem in words otherwise. */
async function ask(path, body, signal) {
  const headers = {};
  if (token.read()) headers.Authorization = `Bearer ${token.read()}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer. Is it still running?", 3);
  }
  const found = await response.json().catch(() => ({}));
  if (response.ok) return found;
  throw new Problem(response.status, inWords(response.status, found.detail), Number(response.headers.get("Retry-After")));
}

function inWords(status, detail) {
  const text = detail || `The server answered ${status}.`;
  if (status === 401) return "The token is missing or wrong.";
  if (status === 429) return `The server is busy: ${text}`;
  if (status === 503 || status === 504) return `The server cannot answer just now: ${text}`;
  return text;
}

/** Says what went wrong where it happened; without the right token, at the entrance too. */
function show(problem, place) {
  if (problem.name === "AbortError") return;
  place.textContent = problem.message;
  if (problem.status === 401) openEntrance();
}

// ---- The token

function openEntrance() {
  byId("entrance-error").textContent = token.read() ? "The server refused this token." : "";
  if (!byId("entrance").hidden) return;
  byId("entrance").hidden = false;
  byId("token").focus();
}

byId("entrance").addEventListener("submit", (event) => {
  event.preventDefault();
  token.write(byId("token").value.trim());
  byId("entrance").hidden = true;
  start();
});

// ---- The form

const fields = new Map(); // name -> {facts, input, state, list}
let model = null;

function hintOf(facts) {
  const numbers = facts.examples.map(Number).filter(Number.isFinite);
  if (facts.kind === "numeric") {
    return numbers.length > 1 ? `a number, often ${numbers[0]} to ${numbers[numbers.length - 1]}` : "a number";
  }
  if (facts.kind === "set") return `several, with ${facts.separator} between`;
  if (facts.kind === "time") return "the time of the row, for its history";
  if (facts.kind === "history") return "for its history";
  return facts.examples.length ? known(facts) : "any text";
}

const known = (facts) => `${facts.size.toLocaleString("en")} known value${facts.size === 1 ? "" : "s"}`;

/** A frequent value of a field; for a number one from the middle. */
function exampleOf(facts) {
  if (facts.kind === "numeric") return facts.examples[Math.floor(facts.examples.length / 2)] ?? "";
  if (facts.kind === "set") return facts.examples.slice(0, 2).join(facts.separator);
  return facts.examples[0] ?? "";
}

function addField(facts, number) {
  const id = `field-${number}`;
  const box = element("div", "field"), label = element("label", "", `${facts.name} `), input = element("input");
  const state = element("p", "state");
  label.append(element("small", "", hintOf(facts)));
  label.htmlFor = id;
  state.id = `${id}-state`;
  Object.assign(input, { id, type: facts.kind === "numeric" ? "number" : "text", placeholder: "missing" });
  if (facts.kind === "numeric") input.step = "any";
  input.setAttribute("aria-describedby", state.id);
  input.setAttribute("autocapitalize", "off");
  input.spellcheck = false;
  input.dataset.field = facts.name;
  box.append(label, input, state);
  if (["categorical", "set"].includes(facts.kind) && facts.examples.length) {
    const list = element("datalist");
    list.id = `${id}-list`;
    input.setAttribute("list", list.id);
    input.addEventListener("focus", () => complete(facts, input, list));
    box.append(list);
    input.addEventListener("input", () => complete(facts, input, list));
  }
  input.addEventListener("input", changed);
  fields.set(facts.name, { facts, input, state });
  byId("fields").append(box);
}

function fill(valueOf) {
  for (const { facts, input } of fields.values()) input.value = valueOf(facts);
  update();
}

function rowNow() {
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

// ---- The probability and its reasons

let waiting = 0, controller = new AbortController();

function changed() {
  clearTimeout(waiting);
  waiting = setTimeout(update, DEBOUNCE);
}

async function update() {
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
    if (!byId("ranking").hidden) rank(candidates);
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

// ---- Charts

let library = null;

/** Plotly, fetched once and after the first answer, because it is large. */
function plotly() {
  library ??= new Promise((resolve, reject) => {
    const script = element("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Problem(0, "The charts could not be loaded; the numbers are right without them."));
    document.head.append(script);
  });
  return library;
}

// Plotly reads a little markup in texts: what comes from the server must not be taken for it.
const inChart = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
const still = (axis) => ({ fixedrange: true, automargin: true, zeroline: false, exponentformat: "none", ...axis });

/** A layout that scrolls with the page under a finger. */
function layoutOf(height, xaxis, yaxis) {
  const font = { family: "system-ui, sans-serif", size: 12, color: "#1b2430" };
  const margin = { l: 8, r: 12, t: 6, b: 8 };
  return { height, font, margin, dragmode: false, hovermode: "closest", xaxis: still(xaxis), yaxis: still(yaxis) };
}

async function drawReasons(why) {
  const Plotly = await plotly();
  drawFields(Plotly, why);
  drawHeat(Plotly, why);
  byId("method").textContent = why.exact
    ? `All fields, all pairs and a start of ${signed(why.bias)} add up to this row's logit, ${signed(why.logit)}.`
    : "Measured by leaving fields out: how much the logit falls without them. Such numbers need not add up.";
}

function drawFields(Plotly, why) {
  const most = why.fields.slice(0, MOST_BARS).reverse();
  const letters = byId("fields-chart").clientWidth < 420 ? 20 : 32;
  const texts = most.map((part) => inChart(shorter(`${part.fields[0]}: ${why.values[part.fields[0]] ?? ""}`, letters)));
  const places = most.map((_, place) => place);
  const bars = {
    type: "bar",
    orientation: "h",
    x: most.map((part) => part.logit),
    y: places,
    marker: { color: most.map((part) => (part.logit < 0 ? RED : BLUE)) },
    text: most.map((part) => signed(part.logit)),
    textposition: "auto",
    cliponaxis: false,
    hoverinfo: "none",
  };
  // Room at both ends for the numbers beside the bars.
  const low = Math.min(0, ...bars.x), high = Math.max(0, ...bars.x), room = (high - low) * 0.2 || 1;
  const range = [low - room, high + room];
  const left = why.fields.length > most.length ? ` (the ${most.length} strongest of ${why.fields.length} fields)` : "";
  const x = { title: { text: `adds to the logit${left}` }, range, zeroline: true, zerolinecolor: "#566273", nticks: 5 };
  const layout = layoutOf(most.length * 24 + 60, x, { tickvals: places, ticktext: texts });
  Plotly.react(byId("fields-chart"), [bars], { ...layout, bargap: 0.25 }, CONFIG);
}

function drawHeat(Plotly, why) {
  byId("heat-chart").hidden = !why.pairs.length;
  if (!why.pairs.length) return;
  const names = why.fields.map((part) => part.fields[0]);
  const order = [...new Set([...Object.keys(why.values), ...names])].filter((name) => names.includes(name));
  const place = new Map(order.map((name, number) => [name, number]));
  const cells = order.map(() => order.map(() => null));
  for (const { fields: pair, logit } of why.pairs) {
    const [one, two] = pair.map((name) => place.get(name));
    cells[one][two] = cells[two][one] = logit;
  }
  const largest = Math.max(1e-9, ...why.pairs.map((part) => Math.abs(part.logit)));
  const texts = cells.map((row, one) =>
    row.map((logit, two) => (logit === null ? "" : inChart(`${order[one]} × ${order[two]}: ${signed(logit)}`))));
  const heat = {
    type: "heatmap", z: cells, text: texts, hovertemplate: "%{text}<extra></extra>", hoverongaps: false,
    zmin: -largest, zmax: largest, colorscale: [[0, RED], [0.5, "#ffffff"], [1, BLUE]], xgap: 1, ygap: 1,
    colorbar: { thickness: 10, exponentformat: "none", title: { text: "logit", side: "right" } },
  };
  byId("heat-box").classList.toggle("one-column", order.length > 16);
  const width = byId("heat-chart").clientWidth, height = Math.max(280, Math.min(620, width));
  // As many names as there is room for.
  const step = Math.ceil((order.length * 13) / (Math.min(width, height) * 0.75));
  const told = order.map((_, number) => number).filter((number) => number % step === 0);
  const ticks = { tickvals: told, ticktext: told.map((number) => inChart(shorter(order[number], 14))), showgrid: false };
  const layout = layoutOf(height, { ...ticks, tickangle: -60 }, { ...ticks, autorange: "reversed" });
  Plotly.react(byId("heat-chart"), [heat], { ...layout, plot_bgcolor: "#e6eaf0" }, CONFIG);
}

// ---- Ranking

let candidates = [], rankings = 0;

/** Candidates of a csv (commas or tabs, quotes as usual), of JSON lines or of a JSON list. */
function parseCandidates(text) {
  const trimmed = text.trim();
  if (!trimmed) throw new Problem(0, "Paste at least one candidate.");
  if (trimmed.startsWith("[")) return parseJson(trimmed, "The list");
  if (trimmed.startsWith("{")) {
    const lines = text.split("\n").map((line, number) => [line.trim(), number + 1]).filter(([line]) => line);
    return lines.map(([line, number]) => parseJson(line, `Line ${number}`));
  }
  const [header, ...rows] = parseCsv(trimmed);
  if (new Set(header).size < header.length) throw new Problem(0, "The header names a field twice.");
  if (!rows.length) throw new Problem(0, "The first line is the header; paste at least one candidate below it.");
  return rows.map((cells, number) => {
    if (cells.length !== header.length) {
      throw new Problem(0, `Candidate ${number + 1} has ${cells.length} cells, but the header has ${header.length}.`);
    }
    return Object.fromEntries(header.map((name, place) => [name, cells[place] === "" ? null : cells[place]]));
  });
}

function parseJson(text, where) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Problem(0, `${where} is not JSON: ${error.message}`);
  }
}

function parseCsv(text) {
  const separator = text.split("\n", 1)[0].includes("\t") ? "\t" : ",";
  const rows = [[]];
  let cell = "", quoted = false;
  const endCell = () => { rows[rows.length - 1].push(cell); cell = ""; };
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (quoted) {
      if (sign !== '"') cell += sign;
      else if (text[at + 1] === '"') { cell += sign; at++; } else quoted = false;
    } else if (sign === '"' && cell === "") quoted = true;
    else if (sign === separator) endCell();
    else if (sign === "\n") { endCell(); rows.push([]); } else if (sign !== "\r") cell += sign;
  }
  if (quoted) throw new Problem(0, "A quotation mark is opened and never closed.");
  endCell();
  return rows.filter((cells) => cells.length > 1 || cells[0] !== "").map((cells) => cells.map((text) => text.trim()));
}

const quote = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);

/** A csv of frequent values of the field that most looks like what is shown, and of a number. */
function exampleCandidates() {
  const all = [...fields.values()].map((field) => field.facts);
  const texts = all.filter((facts) => facts.kind === "categorical" && facts.examples.length > 1);
  const named = texts.filter((facts) => CANDIDATE_NAMES.test(facts.name));
  const others = texts.filter((facts) => facts.name !== model.split.field);
  const first = (named.length ? named : others.length ? others : all).reduce((a, b) => (b.size > a.size ? b : a));
  const second = all.find((facts) => facts.kind === "numeric" && facts !== first && facts.examples.length > 1);
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
    const told = Object.entries(candidates[index]).map(([name, value]) => `${name}: ${value ?? "missing"}`).join(", ");
    const made = tableRow([String(place + 1), told || "(the row above)", [percent(probability), bar]], [0, 2]);
    made.dataset.index = index;
    return made;
  });
  document.querySelector("#ranking tbody").replaceChildren(...rows);
  const from = model.arms.length > 1 ? `, by the model “${found.arm}”` : "";
  byId("ranking-note").textContent = `The most probable first${from}; it follows the row above`;
  byId("ranking").hidden = false;
}

function rankPasted() {
  byId("rank-error").textContent = "";
  try {
    rank(parseCandidates(byId("candidates").value).flat());
  } catch (problem) {
    byId("rank-error").textContent = problem.message;
  }
}

// ---- The A/B test

let polling = 0;

async function watch() {
  clearTimeout(polling);
  if (document.hidden) return;
  let again = POLL;
  try {
    showTest(await ask("/abtest"));
    byId("test-error").textContent = "";
  } catch (problem) {
    // A server without a log is nothing wrong; there, and without the token, asking again changes nothing.
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
  drawDays(await plotly(), report);
}

function verdictOf(one, sure) {
  if (one.improvement === null) return `${one.arm} against ${one.baseline}: too little data for a comparison.`;
  const end = one.decided ? "" : " This may be chance.";
  const between = `between ${signedPercent(one.low)} and ${signedPercent(one.high)} with ${sure} confidence`;
  return `${one.arm} against ${one.baseline}: CTR ${signedPercent(one.improvement)}, ${between}.${end}`;
}

function drawDays(Plotly, report) {
  const days = [...new Set(report.days.map((row) => row.day))];
  const share = (high, low) => (high === null || low === null ? null : (high - low) * 100);
  const lines = report.arms.map(({ arm }, number) => {
    const rows = report.days.filter((row) => row.arm === arm);
    const colour = ARM_COLOURS[number % ARM_COLOURS.length];
    return {
      type: "scatter", mode: "lines+markers", name: inChart(arm), marker: { color: colour }, line: { color: colour },
      // A little apart, so that the intervals of one day stand side by side.
      x: rows.map((row) => days.indexOf(row.day) + (number - (report.arms.length - 1) / 2) * 0.08),
      y: rows.map((row) => share(row.ctr, 0)),
      error_y: {
        type: "data", symmetric: false, thickness: 1.2, width: 3,
        array: rows.map((row) => share(row.ctr_high, row.ctr)), arrayminus: rows.map((row) => share(row.ctr, row.ctr_low)),
      },
      text: rows.map((row) => inChart(`${arm}, ${row.day}: ${percent(row.ctr)} of ${row.shown.toLocaleString("en")} shown`)),
      hovertemplate: "%{text}<extra></extra>",
    };
  });
  const step = Math.ceil(days.length / 7), ticks = days.map((_, place) => place).filter((place) => place % step === 0);
  const x = { tickvals: ticks, ticktext: ticks.map((place) => days[place].slice(5)), range: [-0.5, days.length - 0.5] };
  const layout = layoutOf(320, x, { title: { text: "CTR in %" }, rangemode: "tozero" });
  Plotly.react(byId("days-chart"), lines, { ...layout, showlegend: true, legend: { orientation: "h", y: 1.15 } }, CONFIG);
}

// ---- Start

function aboutModel() {
  const told = model.arms.map((arm) => {
    const auc = arm.metrics?.test?.auc;
    const share = model.arms.length > 1 ? `, ${Number((arm.share * 100).toFixed(1))} % of the traffic` : "";
    const name = arm.name === arm.model ? arm.name : `${arm.name} (${arm.model})`;
    return `${name}${share}${Number.isFinite(auc) ? `, AUC ${auc.toFixed(4)} on its test rows` : ""}`;
  });
  byId("model").textContent = `Serving ${told.join("; ")}. ${fields.size} fields.`;
}

function offerArms() {
  const one = (value, text) => Object.assign(element("option", "", text), { value });
  const by = model.split.field ? `the one that its ${model.split.field} is assigned to` : "drawn for each request";
  const choices = model.arms.map((arm) => one(arm.name, arm.name));
  byId("arm").replaceChildren(one("", by), ...choices);
  byId("arm-box").hidden = model.arms.length < 2;
}

async function start() {
  try {
    model = await ask("/model");
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
  fill(exampleOf);
  watch();
}

byId("row").addEventListener("submit", (event) => { event.preventDefault(); update(); });
byId("example").addEventListener("click", () => fill(exampleOf));
byId("clear").addEventListener("click", () => fill(() => ""));
byId("arm").addEventListener("change", update);
byId("candidates-form").addEventListener("submit", (event) => { event.preventDefault(); rankPasted(); });
byId("candidates").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); rankPasted(); }
});
document.addEventListener("visibilitychange", () => { if (model && !document.hidden) watch(); });
start();
