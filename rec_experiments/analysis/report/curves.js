// Curves: numbers, lines, scales, and the drawing of a panel.
// Text goes through textContent or a canvas, never through HTML.

const explorer = JSON.parse(document.getElementById("explorer-data").textContent);
const LABELLED = 6; // at most so many lines have names at their ends
const WIDE = 440; // pixels of a panel with room for names
const GROWING = ["step", "tokens", "seconds"]; // x axes along which intervals are bands
const NEAR = 40; // pixels from the pointer to a point
const MARGIN = { left: 58, right: 14, top: 10, bottom: 42 };
const INK = "#333333";
const GRID = "#e4e4e4"; // on white also in dark mode, like the figures

const control = (name) => document.getElementById(`explore-${name}`);
const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Numbers: unpacked on first use; the rows of all runs, one run after another.

const unpacked = new Map();
const firstRow = [];
explorer.rows.reduce((sum, count, run) => ((firstRow[run] = sum), sum + count), 0);

function numbers(metric) {
  if (!unpacked.has(metric)) unpacked.set(metric, unpack(explorer.metrics[metric].numbers));
  return unpacked.get(metric);
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = planes.length / 3;
  const bits = new Uint32Array(count);
  for (let i = 0; i < count; i += 1) {
    bits[i] = (planes[i] << 24) | (planes[count + i] << 16) | (planes[2 * count + i] << 8);
  }
  return new Float32Array(bits.buffer);
}

// Lines: a run's points, and the mean of runs at the steps that all of them have.

function pointsOf(run, steps, xs, ys) {
  const points = [];
  let x = NaN; // last measured value
  for (let row = firstRow[run]; row < firstRow[run] + explorer.rows[run]; row += 1) {
    if (!Number.isNaN(xs[row])) x = xs[row];
    if (!Number.isNaN(x) && !Number.isNaN(ys[row])) points.push({ step: steps[row], x, y: ys[row] });
  }
  return points;
}

/** Running mean of y over the last `width` steps; a width of 0 changes nothing. */
function smoothed(points, width) {
  let first = 0;
  return points.map((point, i) => {
    while (points[first].step <= point.step - width && first < i) first += 1;
    return width ? { ...point, y: average(points.slice(first, i + 1).map((each) => each.y)) } : point;
  });
}

function meanOf(lines) {
  const byStep = lines.map((line) => new Map(line.points.map((point) => [point.step, point])));
  const common = lines[0].points.filter((point) => byStep.every((run) => run.has(point.step)));
  return common.map(({ step }) => {
    const at = byStep.map((run) => run.get(step));
    const y = average(at.map((point) => point.y));
    const squares = at.reduce((sum, point) => sum + (point.y - y) ** 2, 0);
    const half = explorer.interval[at.length] * Math.sqrt(squares / (at.length - 1));
    return { step, x: average(at.map((point) => point.x)), y, low: y - half, high: y + half };
  });
}

/** The lines of a panel: the runs of each arm, and their mean if there are several. */
function linesOf(scope, column, on, steps, xs, ys) {
  return scope.arms.flatMap((arm, number) => {
    const runs = scope.lines
      .filter((line) => line[0] === number && line[1] === column)
      .filter((line) => on.seeds.has(explorer.runs[line[2]].seed))
      .map((line) => ({
        arm,
        runs: [line[2]],
        points: smoothed(pointsOf(line[2], steps, xs, ys), Number(control("smooth").value)),
      }))
      .filter((line) => on.arms.has(arm.name) && line.points.length);
    if (runs.length < 2) return runs.map((line) => ({ ...line, thick: true }));
    const mean = { arm, runs: runs.flatMap((line) => line.runs), points: meanOf(runs), thick: true };
    const shown = [...(control("runs").checked ? runs : []), ...(control("means").checked ? [mean] : [])];
    return shown.filter((line) => line.points.length);
  });
}

function nameOf(line) {
  const [first, ...others] = line.runs;
  const which = others.length ? `mean of ${line.runs.length} runs` : `seed ${explorer.runs[first].seed}`;
  return `${line.arm.name}, ${which}`;
}

// Scales, ticks and numbers as text.

function rangeOf(values, log) {
  const usable = log ? values.filter((value) => value > 0) : values;
  let [low, high] = usable.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  if (low > high) [low, high] = [1, 10]; // nothing to show
  if (log) [low, high] = [Math.log10(low), Math.log10(high)];
  const room = (high - low || Math.abs(high) || 1) * 0.04;
  return [low - room, high + room];
}

/**
 * at: the place of a value between the pixels `from` and `to`; not finite if it has none.
 * under: the place of a pixel in the range, which is logarithmic if the axis is.
 */
function scaleOf([low, high], log, from, to) {
  const at = (value) => from + (((log ? Math.log10(value) : value) - low) / (high - low)) * (to - from);
  const under = (pixel) => low + ((pixel - from) / (to - from)) * (high - low);
  return { at, under, ticks: ticksOf(low, high, log) };
}

function ticksOf(first, last, log) {
  if (log && last - first >= 1) {
    const every = Math.ceil((last - first) / 6);
    const decades = [];
    for (let d = Math.ceil(first); d <= last; d += every) decades.push(10 ** d);
    return decades;
  }
  const [low, high] = log ? [10 ** first, 10 ** last] : [first, last];
  const power = 10 ** Math.floor(Math.log10((high - low) / 5));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => (high - low) / size <= 6);
  const ticks = [];
  for (let n = Math.ceil(low / step); n * step <= high; n += 1) ticks.push(n * step);
  return ticks;
}

function text(value) {
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function described(metric) {
  const { is, unit } = explorer.metrics[metric];
  return `${metric}${unit ? ` (${unit})` : ""}${is ? `: ${is}` : ""}`;
}

// Drawing.

function canvasOf(frame, width, height) {
  const canvas = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  frame.append(canvas);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  return pen;
}

/** ranges, logs: of x and y. Sets panel.marks, the points that a pointer can find. */
function drawPanel(panel, titles, ranges, logs) {
  const { width, height, lines } = panel;
  const pen = canvasOf(panel.frame, width, height);
  const thick = lines.filter((line) => line.thick);
  const main = thick.length ? thick : lines;
  const named = main.length <= LABELLED && width >= WIDE ? main : [];
  const labels = new Map(named.map((line) => [line, thick.length ? line.arm.name : nameOf(line)]));
  const widths = [...labels.values()].map((name) => pen.measureText(name).width + 14);
  panel.right = width - Math.min(Math.max(MARGIN.right, ...widths), 0.45 * width);
  panel.bottom = height - MARGIN.bottom;
  panel.scaleX = scaleOf(ranges[0], logs[0], MARGIN.left, panel.right);
  panel.scaleY = scaleOf(ranges[1], logs[1], panel.bottom, MARGIN.top);
  drawAxes(pen, panel, titles);
  pen.save();
  pen.beginPath();
  pen.rect(MARGIN.left, MARGIN.top, panel.right - MARGIN.left, panel.bottom - MARGIN.top);
  pen.clip();
  const means = lines.filter((line) => line.runs.length > 1 && GROWING.includes(titles[0]));
  for (const line of means) drawBand(pen, panel, line);
  const alpha = thick.length ? 0.45 : 0.9;
  for (const line of lines.filter((each) => !each.thick)) drawLine(pen, panel, line, 0.8, alpha);
  for (const line of thick) drawLine(pen, panel, line, 2, 1);
  pen.restore();
  nameEnds(pen, panel, labels);
  panel.marks = lines.flatMap((line) =>
    line.points
      .map((point) => ({ line, point, x: panel.scaleX.at(point.x), y: panel.scaleY.at(point.y) }))
      .filter((mark) => Number.isFinite(mark.x) && Number.isFinite(mark.y))
  );
}

function drawAxes(pen, { scaleX, scaleY, right, bottom }, [x, y]) {
  pen.strokeStyle = GRID;
  pen.fillStyle = INK;
  pen.textBaseline = "middle";
  for (const tick of scaleY.ticks) {
    pen.strokeRect(MARGIN.left, scaleY.at(tick), right - MARGIN.left, 0);
    pen.textAlign = "right";
    pen.fillText(text(tick), MARGIN.left - 6, scaleY.at(tick));
  }
  for (const tick of scaleX.ticks) {
    pen.strokeRect(scaleX.at(tick), MARGIN.top, 0, bottom - MARGIN.top);
    pen.textAlign = "center";
    pen.fillText(text(tick), scaleX.at(tick), bottom + 12);
  }
  pen.fillText(x, (MARGIN.left + right) / 2, bottom + 30);
  pen.save();
  pen.translate(10, (MARGIN.top + bottom) / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(y, 0, 0);
  pen.restore();
}

function drawLine(pen, { scaleX, scaleY }, line, width, alpha) {
  pen.globalAlpha = alpha;
  pen.strokeStyle = line.arm.color;
  pen.lineWidth = width;
  pen.setLineDash(line.arm.dash);
  pen.beginPath();
  // The canvas skips a point without a place, such as 0 on a logarithmic axis.
  for (const point of line.points) pen.lineTo(scaleX.at(point.x), scaleY.at(point.y));
  pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

function drawBand(pen, { scaleX, scaleY, bottom }, line) {
  const foot = (y) => (Number.isFinite(y) ? y : bottom); // for values below a logarithmic axis
  const back = [...line.points].reverse();
  pen.globalAlpha = 0.15;
  pen.fillStyle = line.arm.color;
  pen.beginPath();
  for (const point of line.points) pen.lineTo(scaleX.at(point.x), scaleY.at(point.high));
  for (const point of back) pen.lineTo(scaleX.at(point.x), foot(scaleY.at(point.low)));
  pen.fill();
  pen.globalAlpha = 1;
}

/** Names at the heights of the lines' ends, pushed apart. */
function nameEnds(pen, { scaleY, right, bottom }, labels) {
  const ends = [...labels]
    .map(([line, name]) => ({ name, color: line.arm.color, y: scaleY.at(line.points.at(-1).y) }))
    .filter((end) => Number.isFinite(end.y))
    .sort((one, other) => one.y - other.y);
  ends.forEach((end, i) => (end.y = Math.max(end.y, i ? ends[i - 1].y + 14 : MARGIN.top)));
  for (let i = ends.length - 1, limit = bottom; i >= 0; i -= 1, limit -= 14) {
    ends[i].y = Math.min(ends[i].y, limit);
  }
  pen.textAlign = "left";
  for (const end of ends) {
    pen.fillStyle = end.color;
    pen.fillText(end.name, right + 6, end.y);
  }
}
