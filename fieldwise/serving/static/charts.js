// Charts, by plotly.js.

import { byId, element } from "./dom.js";
import { Problem } from "./server.js";
import { percent, shorter, signed } from "./words.js";

const MOST_BARS = 20;
const BLUE = "#1f5fa8", RED = "#b3261e", ARM_COLOURS = [BLUE, "#c05a00", "#2e7d4f", "#7b4fa3", "#6b6b6b"];
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

// Plotly interprets some markup in texts: escape what comes from the server.
const inChart = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
const still = (axis) => ({ fixedrange: true, automargin: true, zeroline: false, exponentformat: "none", ...axis });

/** A layout that scrolls with the page under a finger. */
function layoutOf(height, xaxis, yaxis) {
  const font = { family: "system-ui, sans-serif", size: 12, color: "#1b2430" };
  const margin = { l: 8, r: 12, t: 6, b: 8 };
  return { height, font, margin, dragmode: false, hovermode: "closest", xaxis: still(xaxis), yaxis: still(yaxis) };
}

/** What each field and each pair adds. */
export async function drawReasons(why) {
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
  // Leave room at both ends for the numbers beside the bars.
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
  // Show as many names as fit.
  const step = Math.ceil((order.length * 13) / (Math.min(width, height) * 0.75));
  const named = order.map((_, number) => number).filter((number) => number % step === 0);
  const ticks = { tickvals: named, ticktext: named.map((number) => inChart(shorter(order[number], 14))), showgrid: false };
  const layout = layoutOf(height, { ...ticks, tickangle: -60 }, { ...ticks, autorange: "reversed" });
  Plotly.react(byId("heat-chart"), [heat], { ...layout, plot_bgcolor: "#e6eaf0" }, CONFIG);
}

/** The click rates of the arms by day. */
export async function drawDays(report) {
  const Plotly = await plotly();
  const days = [...new Set(report.days.map((row) => row.day))];
  const share = (high, low) => (high === null || low === null ? null : (high - low) * 100);
  const lines = report.arms.map(({ arm }, number) => {
    const rows = report.days.filter((row) => row.arm === arm);
    const colour = ARM_COLOURS[number % ARM_COLOURS.length];
    return {
      type: "scatter", mode: "lines+markers", name: inChart(arm), marker: { color: colour }, line: { color: colour },
      // Offset, so the intervals of one day do not overlap.
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
