// Elements of the page. Texts of the server are only ever set as text, never as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with a class and a text. */
export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** A row of a table: texts, or elements; `numbers` are the places that stand at the right. */
export function tableRow(cells, numbers) {
  const row = element("tr");
  cells.forEach((cell, place) => {
    const made = element("td", numbers.includes(place) ? "number" : "");
    made.append(...[cell].flat());
    row.append(made);
  });
  return row;
}
