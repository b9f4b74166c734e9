// Candidates as people paste them.

import { Problem } from "./server.js";

/** Candidates of a csv (commas or tabs, quotes as usual), of JSON lines or of a JSON list. */
export function parseCandidates(text) {
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

export const quote = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
