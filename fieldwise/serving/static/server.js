// Requests to the server, and the models it serves.

import { openEntrance, token } from "./entrance.js";

export let model = null;

/** Fetches the description of the models into `model`. */
export async function loadModel() {
  model = await ask("/model");
}

export class Problem extends Error {
  constructor(status, text, after) {
    super(text);
    this.status = status;
    this.after = after;
  }
}

/** The answer to a GET, or with a body to a POST, as JSON; a Problem in words otherwise. */
export async function ask(path, body, signal) {
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
export function show(problem, place) {
  if (problem.name === "AbortError") return;
  place.textContent = problem.message;
  if (problem.status === 401) openEntrance();
}
