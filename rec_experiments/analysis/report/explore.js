// Curves: pointing at values, zooming, and the controls.

const DRAG = 6; // pixels in both directions that make a drag of a click

// Pointing at a value, and showing its run.

function listen(panel, titles) {
  const over = canvasOf(panel.frame, panel.width, panel.height);
  const tip = element("div", "", { class: "tip", hidden: "" });
  panel.frame.append(tip);
  over.canvas.tabIndex = 0;
  over.canvas.setAttribute("role", "img");
  const said = `${titles[1]} against ${titles[0]}, ${panel.name}: ${panel.lines.length} lines`;
  over.canvas.setAttribute("aria-label", said);
  let chosen = null;

  function show(mark) {
    chosen = mark;
    over.clearRect(0, 0, panel.width, panel.height);
    tip.hidden = !mark;
    over.canvas.classList.toggle("near", Boolean(mark));
    if (!mark) return;
    drawLine(over, panel, mark.line, 3, 1);
    over.fillStyle = mark.line.arm.color;
    over.beginPath();
    over.arc(mark.x, mark.y, 5, 0, 2 * Math.PI);
    over.fill();
    tip.replaceChildren(...saidOf(mark, titles).map((line) => element("div", line)));
    const left = mark.x > panel.width / 2 ? mark.x - tip.offsetWidth - 12 : mark.x + 12;
    tip.style.left = `${Math.max(0, Math.min(left, panel.width - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, mark.y - tip.offsetHeight - 8)}px`;
  }

  const under = (event) => nearest(panel.marks, event.offsetX, event.offsetY);
  let start = null; // of a drag, in pixels
  const isDrag = ({ offsetX, offsetY }) =>
    start && Math.min(Math.abs(offsetX - start.x), Math.abs(offsetY - start.y)) >= DRAG;
  over.canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") start = { x: event.offsetX, y: event.offsetY };
  });
  over.canvas.addEventListener("pointermove", (event) => {
    show(isDrag(event) ? null : under(event));
    if (!isDrag(event)) return;
    over.strokeStyle = INK;
    over.strokeRect(start.x, start.y, event.offsetX - start.x, event.offsetY - start.y);
  });
  over.canvas.addEventListener("pointerleave", () => ((start = null), show(null)));
  over.canvas.addEventListener("blur", () => show(null));
  over.canvas.addEventListener("dblclick", () => zoomTo(null));
  over.canvas.addEventListener("click", (event) => {
    const [from, dragged] = [start, isDrag(event)];
    start = null;
    if (dragged) {
      const sides = [
        [from.x, event.offsetX].map(panel.scaleX.under),
        [from.y, event.offsetY].map(panel.scaleY.under),
      ];
      zoomTo(sides.map((ends) => ends.sort((a, b) => a - b)));
      return;
    }
    show(under(event));
    if (chosen) showRun(chosen, panel, titles);
  });
  over.canvas.addEventListener("keydown", (event) => {
    const at = panel.marks.indexOf(chosen);
    const lines = panel.lines.filter((line) => line.points.length);
    const turn = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" && chosen) showRun(chosen, panel, titles);
    else if (move) show(panel.marks[Math.max(0, Math.min(at + move, panel.marks.length - 1))] ?? null);
    else if (turn) {
      const next = lines.at((lines.indexOf(chosen?.line) + turn) % lines.length);
      show(panel.marks.find((mark) => mark.line === next) ?? null);
    } else return;
    event.preventDefault();
  });
}

function nearest(marks, x, y) {
  let [best, distance] = [null, NEAR ** 2];
  for (const mark of marks) {
    const away = (mark.x - x) ** 2 + (mark.y - y) ** 2;
    if (away < distance) [best, distance] = [mark, away];
  }
  return best;
}

function saidOf({ line, point }, [x, y]) {
  const interval = "low" in point ? ` [${text(point.low)}, ${text(point.high)}]` : "";
  const at = x === "step" ? [] : [`${x} ${text(point.x)}`];
  return [nameOf(line), `${y} ${text(point.y)}${interval}`, ...at, `step ${point.step}`];
}

/** Shows the runs of a point: folders, differences from most runs, responses. */
function showRun(mark, panel, titles) {
  const [name, ...values] = saidOf(mark, titles);
  const parts = [element("h3", `${name}, ${panel.name}`), element("p", values.join(", "))];
  for (const number of mark.line.runs) {
    const run = explorer.runs[number];
    const line = element("p", `${run.name}, ${run.state}, step ${run.step}: `);
    line.append(element("a", "run folder", { href: run.folder }), " ");
    if (samples.runs[number].length) {
      const button = element("button", "responses", { type: "button" });
      button.addEventListener("click", () => showSamplesOf(number));
      line.append(button);
    }
    parts.push(line);
  }
  const { differs } = explorer.runs[mark.line.runs[0]];
  const rows = Object.entries(differs).map(([key, value]) => [key, value, explorer.usual[key]]);
  const box = element("div", "", { class: "scroll" });
  const caption = "Keys of the configuration that differ from most runs";
  box.append(tableOf(caption, ["key", "this run", "most runs"], rows));
  control("run").replaceChildren(...parts, box);
}

function tableOf(caption, head, rows) {
  const table = document.createElement("table");
  table.append(element("caption", caption));
  const top = table.createTHead().insertRow();
  for (const name of head) top.append(element("th", name, { scope: "col" }));
  const body = table.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const cell of cells) row.append(element("td", cell));
  }
  return table;
}

// Controls.

const switchedOn = (name) => new Set(find("input:checked", control(name)).map((input) => input.value));

function options(select, values, usual) {
  select.replaceChildren(...values.map((value) => element("option", value)));
  if (values.includes(usual)) select.value = usual;
}

function switches(name, values, looks = []) {
  const boxes = values.map((value, i) => {
    const label = element("label", "", { class: "switch" });
    const box = element("input", "", { type: "checkbox", value });
    box.checked = true;
    label.append(box, ...(looks[i] ? [swatch(looks[i])] : []), value);
    return label;
  });
  const all = element("button", "all or none", { type: "button" });
  all.addEventListener("click", () => {
    const inputs = find("input", control(name));
    const on = inputs.some((input) => !input.checked);
    for (const input of inputs) input.checked = on;
    draw();
  });
  control(name).replaceChildren(control(name).firstElementChild, all, ...boxes);
}

function swatch({ color, dash }) {
  const made = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const [svg, line] = [made("svg"), made("line")];
  const place = { x1: 0, x2: 30, y1: 5, y2: 5 };
  const looks = { stroke: color, "stroke-width": 3, "stroke-dasharray": dash.join(" ") };
  for (const [key, value] of Object.entries({ ...place, ...looks })) line.setAttribute(key, value);
  svg.setAttribute("class", "swatch");
  svg.append(line);
  return svg;
}

const scopeChosen = () => explorer.scopes[control("scope").selectedIndex];

let zoom = null; // ranges of x and y, logarithmic where the axis is; null for all points

function zoomTo(ranges) {
  zoom = ranges;
  keepView();
  return draw();
}

/** off: arms, columns and seeds that are not shown. */
function chooseScope(off = {}) {
  const scope = scopeChosen();
  const seeds = [...new Set(scope.lines.map((line) => explorer.runs[line[2]].seed))];
  switches("arms", scope.arms.map((arm) => arm.name), scope.arms);
  switches("columns", scope.columns);
  switches("seeds", seeds.sort((a, b) => a.localeCompare(b, "en", { numeric: true })));
  for (const group of GROUPS) {
    for (const box of find("input", control(group))) box.checked = !off[group]?.includes(box.value);
  }
  return draw();
}

// The view is kept in the address, so that a link or a reload shows it again.

const VIEW = "#view=";
const GROUPS = ["arms", "columns", "seeds"];
const SELECTS = ["scope", "x", "y", "smooth"];
const BOXES = ["log-x", "log-y", "runs", "means"];

function keepView() {
  const off = (name) => find("input:not(:checked)", control(name)).map((box) => box.value);
  const view = {
    selects: SELECTS.map((name) => control(name).value),
    boxes: BOXES.map((name) => control(name).checked),
    off: Object.fromEntries(GROUPS.map((name) => [name, off(name)])),
    filters: [...filters, words].map((input) => input.value),
    zoom,
  };
  history.replaceState(null, "", VIEW + encodeURIComponent(JSON.stringify(view)));
}

/** Sets the controls as an address says, and returns the view; null if it says nothing usable. */
function restoreView() {
  let view = null;
  try {
    if (location.hash.startsWith(VIEW)) view = JSON.parse(decodeURIComponent(location.hash.slice(VIEW.length)));
    const offers = (name, i) => [...control(name).options].some((each) => each.value === view.selects[i]);
    if (!view || !SELECTS.every(offers)) return null; // or of another page
  } catch {
    return null;
  }
  SELECTS.forEach((name, i) => (control(name).value = view.selects[i]));
  BOXES.forEach((name, i) => (control(name).checked = view.boxes?.[i]));
  [...filters, words].forEach((input, i) => (input.value = view.filters?.[i] ?? ""));
  filterRuns();
  zoom = view.zoom?.flat?.().every(Number.isFinite) ? view.zoom : null;
  return view;
}

let [draws, drawn] = [0, 0]; // numbers of the last requested and the last finished drawing

async function draw() {
  const mine = (draws += 1);
  const titles = [control("x").value, control("y").value];
  const [steps, xs, ys] = await Promise.all(["step", ...titles].map(numbers));
  if (mine !== draws) return; // a newer choice
  const scope = scopeChosen();
  const on = { arms: switchedOn("arms"), columns: switchedOn("columns"), seeds: switchedOn("seeds") };
  const panels = scope.columns
    .map((name, column) => ({ name: name || scope.name, column }))
    .filter((panel) => on.columns.has(scope.columns[panel.column]))
    .map((panel) => ({ ...panel, lines: linesOf(scope, panel.column, on, steps, xs, ys) }));
  const logs = [control("log-x").checked, control("log-y").checked];
  const points = panels.flatMap((panel) => panel.lines.flatMap((line) => line.points));
  const ranges =
    zoom ?? ["x", "y"].map((axis, i) => rangeOf(points.map((point) => point[axis]), logs[i]));
  control("whole").hidden = !zoom;
  control("panels").replaceChildren(...panels.map(framed));
  for (const panel of panels) {
    panel.width = panel.frame.clientWidth;
    panel.height = Math.round(Math.max(240, Math.min(400, 0.6 * panel.width)));
    drawPanel(panel, titles, ranges, logs);
    listen(panel, titles);
  }
  control("reading").textContent = [...titles].reverse().map(described).join("; ") + ". " + READING;
  control("table").replaceChildren(lastPoints(panels, titles));
  control("csv").onclick = () => download("curves.csv", pointsAsRows(panels, titles));
  drawn = mine;
}

const READING =
  `Thick lines and bands: mean over runs and its ${explorer.confidence} t interval, at the steps ` +
  "that all of them have; bands only over steps, tokens and seconds. Thin lines: single runs. " +
  "The x axis shows the last measured value. Logarithmic axes show no zeros.";

function framed(panel) {
  const box = element("figure", "", { class: "panel" });
  panel.frame = element("div", "", { class: "frame" });
  box.append(element("figcaption", panel.name), panel.frame);
  return box;
}

function lastPoints(panels, [x, y]) {
  const rows = panels.flatMap((panel) =>
    panel.lines.map((line) => {
      const { step, x: right, y: up, low, high } = line.points.at(-1);
      const interval = low === undefined ? "" : `${text(low)} to ${text(high)}`;
      return [panel.name, nameOf(line), String(step), text(right), text(up), interval];
    })
  );
  return tableOf("As drawn above", ["column", "line", "step", x, y, "interval"], rows);
}

function pointsAsRows(panels, [x, y]) {
  const digits = (value) => (value === undefined ? "" : Number(value.toPrecision(5))); // as packed
  const besides = x === "step" ? [] : [x];
  const rows = panels.flatMap((panel) =>
    panel.lines.flatMap((line) =>
      line.points.map((point) => [
        panel.name,
        nameOf(line),
        digits(point.step),
        ...besides.map(() => digits(point.x)),
        ...[point.y, point.low, point.high].map(digits),
      ])
    )
  );
  return [["column", "line", "step", ...besides, y, "low", "high"], ...rows];
}

if (explorer.scopes.length) {
  const metrics = Object.keys(explorer.metrics);
  options(control("scope"), explorer.scopes.map((scope) => scope.name));
  options(control("y"), metrics, "eval/accuracy");
  options(control("x"), metrics, "step");
  document.getElementById("explore").addEventListener("input", (event) => {
    if (event.target.closest("#explore-smooth, fieldset") === null) zoom = null; // other axes
    event.target === control("scope") ? chooseScope() : draw();
  });
  for (const id of ["explore", "run-filters"]) {
    document.getElementById(id).addEventListener("input", keepView);
  }
  control("whole").addEventListener("click", () => zoomTo(null));
  window.addEventListener("resize", draw);
  const view = restoreView();
  chooseScope(view?.off);
  if (view) document.getElementById("curves").scrollIntoView();
}
