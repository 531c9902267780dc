"use strict";

const find = (selector, root = document) => [...root.querySelectorAll(selector)];

for (const form of find("form")) form.addEventListener("submit", (event) => event.preventDefault());

// Figures: a click shows them in full size, within a frame that scrolls.
for (const button of find(".figure button")) {
  button.addEventListener("click", () => {
    const large = button.parentElement.classList.toggle("large");
    button.setAttribute("aria-pressed", String(large));
  });
}

/** Saves rows of values as a file of comma-separated values. */
function download(name, rows) {
  const quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;
  const text = rows.map((row) => row.map(quoted).join(",")).join("\r\n");
  const link = element("a", "", { download: name });
  link.href = URL.createObjectURL(new Blob([text + "\r\n"], { type: "text/csv" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// Runs: a row is shown if it passes every filter.
const rows = find("#run-table tbody tr");
const filters = find("#run-filters select");
const words = document.getElementById("filter-text");

function filterRuns() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const fits = filters.every(
      (filter) => !filter.value || JSON.parse(row.dataset[filter.dataset.key]).includes(filter.value)
    );
    const text = row.textContent.toLowerCase();
    row.hidden = !(fits && wanted.every((word) => text.includes(word)));
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById("run-count").textContent = `${shown} of ${rows.length} runs`;
}

if (words) {
  for (const control of [...filters, words]) control.addEventListener("input", filterRuns);
  filterRuns();
  document.getElementById("run-csv").addEventListener("click", () => {
    const head = find("#run-table th").map((cell) => cell.textContent);
    const shown = find("#run-table tbody tr:not([hidden])");
    download("runs.csv", [head, ...shown.map((row) => [...row.cells].map((c) => c.dataset.sort))]);
  });
}

// Runs: a click on a column's name sorts by it, a second one reverses the order.
for (const button of find("#run-table th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of find("#run-table th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => row.cells[head.cellIndex].dataset.sort;
    const compare = (a, b) =>
      (value(a) === "") - (value(b) === "") || // missing values come last
      (up ? 1 : -1) * value(a).localeCompare(value(b), "en", { numeric: true });
    const numeric = rows.every((row) => value(row) === "" || !Number.isNaN(Number(value(row))));
    const byNumber = (a, b) =>
      (value(a) === "") - (value(b) === "") || (up ? 1 : -1) * (value(a) - value(b));
    find("#run-table tbody")[0].append(...[...rows].sort(numeric ? byNumber : compare));
  });
}

// Samples: figure, arm, column and seed choose a run; each choice narrows the next.
const samples = JSON.parse(document.getElementById("samples-data").textContent);
const pickers = find("#sample-pickers select");

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text; // never HTML: responses are arbitrary text
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function fill(first) {
  for (let i = first; i < pickers.length; i += 1) {
    const before = pickers[i].value;
    const left = samples.places.filter((place) =>
      pickers.slice(0, i).every((picker, j) => place[j] === picker.value)
    );
    const options = [...new Set(left.map((place) => place[i]))];
    pickers[i].replaceChildren(...options.map((option) => element("option", option)));
    if (options.includes(before)) pickers[i].value = before;
  }
  showSamples();
}

function showSamples() {
  const place = samples.places.find((each) => pickers.every((picker, i) => each[i] === picker.value));
  const evaluations = samples.runs[place[pickers.length]];
  const table = document.createElement("table");
  table.className = "sample-table";
  const caption = evaluations.length ? "Reward and response at each evaluation" : "No evaluation";
  table.append(element("caption", caption));
  const head = table.createTHead().insertRow();
  head.append(element("th", "prompt", { scope: "col" }));
  for (const evaluation of evaluations) {
    head.append(element("th", `step ${evaluation.step}`, { scope: "col" }));
  }
  const body = table.createTBody();
  const count = Math.max(0, ...evaluations.map((evaluation) => evaluation.responses.length));
  for (let i = 0; i < count; i += 1) {
    const row = body.insertRow();
    const asked = evaluations.map((evaluation) => evaluation.responses[i]).find(Boolean);
    const name = element("th", "", { scope: "row" });
    name.append(element("div", asked.prompt, { class: "text" }));
    if (asked.answer) {
      name.append(element("div", "expected", { class: "quiet" }));
      name.append(element("div", asked.answer, { class: "text" }));
    }
    row.append(name);
    for (const evaluation of evaluations) {
      const cell = row.insertCell();
      const response = evaluation.responses[i];
      if (!response) continue;
      const tone = response.reward > 0 ? "good" : "bad";
      cell.append(element("div", `reward ${response.reward}`, { class: tone }));
      cell.append(element("div", response.response, { class: "text" }));
    }
  }
  document.getElementById("sample-view").replaceChildren(table);
}

/** Selects a run by its number, and scrolls to it. */
function showSamplesOf(number) {
  const place = samples.places.find((each) => each[pickers.length] === number);
  pickers.forEach((picker, i) => {
    picker.value = place[i];
    fill(i + 1);
  });
  document.getElementById("responses").scrollIntoView();
}

if (pickers.length) {
  pickers.forEach((picker, i) => picker.addEventListener("input", () => fill(i + 1)));
  fill(0);
}
