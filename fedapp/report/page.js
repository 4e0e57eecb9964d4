"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const SMALLER = new Set(data.smallerIsBetter);
const DASHES = ["", "7 4", "2 4", "9 4 2 4", "14 5"]; // one for each turn through the colours
const MANY = 20; // curves, above which only the best are shown at first
const BEST = 10;
const NONE = "–";

// ---- elements: names and values become text, never markup

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const make = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// ---- numbers as text

const words = (name) => name.replaceAll("_", " ");
const tenth = (pixels) => Math.round(10 * pixels) / 10;
const trim = (value, digits) => String(Number(value.toPrecision(digits)));
const grouped = (value, digits = 0) =>
  value.toLocaleString("en", { maximumFractionDigits: digits });

function figureText(value, figure) {
  if (value === null) return NONE;
  if (figure === "test_accuracy") return value.toFixed(4);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : value.toPrecision(4);
}

function amountText(value) {
  if (value === null) return NONE;
  if (value >= 1000) return grouped(value);
  return value >= 100 ? value.toFixed(1) : value === 0 ? "0" : value.toPrecision(3);
}

const BYTES = [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]];
const SECONDS = [["s", 1], ["min", 60], ["h", 3600], ["d", 86400]];

// The largest unit of which there are at least `least`.
const unitOf = (value, units, least = 1) =>
  units.findLast(([, size]) => value >= least * size) ?? units[0];

function withUnit(value, units) {
  if (value === 0) return "0";
  const [unit, size] = unitOf(value, units);
  return `${value / size >= 1000 ? grouped(value / size) : trim(value / size, 3)} ${unit}`;
}

function powerText(value) {
  const [digits, exponent] = value.toExponential(3).split("e").map(Number);
  const raised = [...String(exponent)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  return digits === 1 ? `10${raised}` : `${digits}·10${raised}`;
}

function plainText(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return powerText(value);
  return size >= 1e4 ? grouped(value) : trim(value, 10);
}

// ---- runs

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const distinct = (values) => [...new Set(values)];

for (const run of data.runs) {
  run.on = true;
  run.config = { ...data.common, ...run.config };
  for (const [name, column] of Object.entries(run.columns))
    if (!Array.isArray(column)) run.columns[name] = Array(run.length).fill(column);
  run.column = (name) => run.columns[name] ?? Array(run.length).fill(null);
  run.known = (name) => (run.columns[name] ?? []).filter((value) => value !== null);
  run.totals = {};
  run.total = (name) => {
    let sum = 0;
    return (run.totals[name] ??= run.column(name).map((value) => (sum += value ?? 0)));
  };
}

const lastOf = (values) => (values.length ? values.at(-1) : null);

function bestOf(run, figure) {
  const known = run.known(figure);
  if (!known.length) return null;
  return known.reduce((a, b) => (SMALLER.has(figure) ? Math.min(a, b) : Math.max(a, b)));
}

// Where a run reaches a target for the first time: the index of its round, or -1.
function reachedAt(run, figure, target) {
  const enough = SMALLER.has(figure) ? (v) => v <= target : (v) => v >= target;
  return run.column(figure).findIndex((value) => value !== null && enough(value));
}

// Between evaluations a missing figure is nothing; where one was due, it was not finite.
function every(run, figure) {
  const period = run.config["eval-every"] || 1;
  const column = run.column(figure);
  const between = run.column("round").some(
    (round, k) => round % period && k < run.length - 1 && column[k] !== null,
  );
  return between ? 1 : period;
}

const AXES = {
  rounds: { name: "Rounds", label: "communication rounds", of: (run) => run.column("round") },
  uplink: {
    name: "Uplink", label: "uplink bytes, all clients", units: BYTES,
    of: (run) => run.total("uplink_bytes"),
  },
  simulated: {
    name: "Simulated time", label: "simulated time", units: SECONDS,
    of: (run) => run.total("simulated_seconds"),
  },
  wall: {
    name: "Wall time", label: "wall time", units: SECONDS,
    of: (run) => run.total("wall_seconds"),
  },
};

// ---- what the reader chose

const first = ["test_accuracy", "gap"].find((name) => data.figures.includes(name));
const chosen = {
  figure: first ?? data.figures[0] ?? null,
  judged: first ?? data.figures[0] ?? null, // what best, last and the target are about
  axis: "rounds",
  logX: false,
  logY: false,
  average: data.groups.some((group) => group.runs.length > 1),
  sort: "best",
  descending: false,
  targets: { test_accuracy: data.target },
};
let curves = []; // one for each row: a run, or a group of runs that differ in their seeds

function makeCurves() {
  const groups = chosen.average
    ? data.groups.map(({ name, note, runs }) => [name, note, runs.map((index) => data.runs[index])])
    : data.runs.map((run) => [run.name, run.note, [run]]);
  curves = groups.map(([name, note, runs]) => ({
    name,
    note, // what is not complete, or there twice
    runs,
    slot: null, // its colour and dashes
    values: [], // of its row
    matches: true,
  }));
}

// A word of the filter: part of a name, or key=value, where the key may be the end of one.
function asksFor(word) {
  const [key, value] = word.split(/=(.*)/s);
  if (value === undefined) {
    const texts = (run) => [run.name, run.config.algorithm, run.config.dataset, run.config.model];
    return (curve) => [curve.name, curve.note, ...curve.runs.flatMap(texts)]
      .some((text) => String(text).toLowerCase().includes(word));
  }
  const ending = data.keys.filter((name) => name.endsWith(key));
  const differing = ending.filter((name) => !(name in data.common));
  const same = (held) =>
    String(held).toLowerCase() === value || (typeof held === "number" && value !== "" && held === Number(value));
  return (curve) => curve.runs.some((run) =>
    (differing.length ? differing : ending).some((name) => same(run.config[name])));
}

const isOn = (curve) => curve.runs.some((run) => run.on);
const shownCurves = () => curves.filter((curve) => curve.matches && isOn(curve));
const switchTo = (curve, on) => curve.runs.forEach((run) => (run.on = on));

function average(curve, figureOfRun) {
  const known = curve.runs.map(figureOfRun).filter((value) => value !== null);
  return known.length ? mean(known) : null;
}

function showBest(among) {
  const rank = (curve) => {
    const best = average(curve, (run) => bestOf(run, chosen.judged));
    return best === null ? Number.MAX_VALUE : SMALLER.has(chosen.judged) ? best : -best;
  };
  const ranked = [...among].sort((a, b) => rank(a) - rank(b));
  ranked.forEach((curve, place) => switchTo(curve, place < BEST));
}

// A curve keeps its colour while it is shown, unless there is now a plainer one for it.
function dealColours(shown) {
  const enough = Math.max(data.colours.length, shown.length);
  const visible = new Set(shown);
  for (const curve of curves) if (!visible.has(curve) || curve.slot >= enough) curve.slot = null;
  const taken = new Set(shown.map((curve) => curve.slot));
  let slot = 0;
  for (const curve of shown) {
    if (curve.slot !== null) continue;
    while (taken.has(slot)) slot += 1;
    curve.slot = slot++;
  }
}

function ink(slot) {
  const colour = data.colours[slot % data.colours.length];
  if (colour === "#000000") return "var(--ink)"; // black would be lost on a dark page
  return `light-dark(${colour}, color-mix(in oklab, ${colour} 82%, white))`;
}
const dashes = (slot) => DASHES[Math.floor(slot / data.colours.length) % DASHES.length];

// ---- target

const targetText = () => trim(chosen.targets[chosen.judged], 6);

function targetRange() {
  if (chosen.judged === "test_accuracy") return { low: 0, high: 1, log: false };
  const { low, high } = rangeOf(chosen.judged);
  return { low, high, log: low > 0 && high > 100 * low };
}

function rangeOf(figure) {
  let [low, high] = [Infinity, -Infinity];
  for (const run of data.runs)
    for (const value of run.known(figure)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return { low, high };
}

function setJudged(figure) {
  chosen.judged = figure;
  if (chosen.sort === "best") chosen.descending = !SMALLER.has(figure); // the best first
  at("judged").value = figure;
  if (!(figure in chosen.targets)) {
    const bests = data.runs.map((run) => bestOf(run, figure)).filter((value) => value !== null);
    bests.sort((a, b) => a - b);
    chosen.targets[figure] = Number(bests[Math.floor(bests.length / 2)].toPrecision(2));
  }
  at("target").value = targetText();
  placeSlider();
}

function placeSlider() {
  const { low, high, log } = targetRange();
  const scale = log ? Math.log : Number;
  const share = (scale(chosen.targets[chosen.judged]) - scale(low)) / (scale(high) - scale(low));
  at("target-slider").value = Math.round(1000 * (Number.isFinite(share) ? share : 0));
  at("target-slider").setAttribute("aria-valuetext", targetText());
}

function valueOfSlider() {
  const { low, high, log } = targetRange();
  const share = at("target-slider").value / 1000;
  const value = log ? low * (high / low) ** share : low + share * (high - low);
  return Number(value.toPrecision(chosen.judged === "test_accuracy" ? 6 : 3));
}

// ---- the table of runs, which is the legend too

const totalOf = (name) => (curve) =>
  average(curve, (run) => (name in run.columns ? lastOf(run.total(name)) : null));

// Columns: what a curve is sorted by, and how it is written, if not as that value.
const COLUMNS = [
  { key: "name", title: "run", value: (curve) => curve.name },
  { key: "algorithm", title: "algorithm", value: (curve) => configText(curve, "algorithm") },
  { key: "dataset", title: "dataset", value: (curve) => configText(curve, "dataset") },
  figureColumn("best", bestOf),
  figureColumn("last", (run, figure) => lastOf(run.known(figure))),
  {
    key: "rounds", title: "rounds",
    value: (curve) => average(curve, (run) => run.length),
    write: (value) => (value === null ? NONE : grouped(value, 1)),
  },
  byteColumn("uplink", "uplink", totalOf("uplink_bytes")),
  byteColumn("downlink", "downlink", totalOf("downlink_bytes")),
  timeColumn("simulated", "simulated", "simulated_seconds", totalOf("simulated_seconds")),
  timeColumn("wall", "wall", "wall_seconds", totalOf("wall_seconds")),
  {
    key: "target-rounds", title: "rounds",
    value: (curve) => spent(curve, "round", (run) => run.column("round")),
    write: (value, curve) => (value === null ? unreached(curve) : grouped(value, 1)),
  },
  byteColumn("target-uplink", "uplink", (curve) => spent(curve, "uplink_bytes")),
  timeColumn("target-simulated", "simulated", "simulated_seconds",
    (curve) => spent(curve, "simulated_seconds")),
];
// What stands above them, over so many.
const GROUPS = [
  [3, () => ""],
  [2, () => (chosen.judged ? words(chosen.judged) : "")],
  [5, () => "whole run"],
  [3, () => (chosen.judged ? `to target ${targetText()}` : "to target")],
];

function figureColumn(key, of) {
  const values = (curve) =>
    curve.runs.map((run) => of(run, chosen.judged)).filter((value) => value !== null);
  return {
    key, title: key,
    value: (curve) => average(curve, (run) => of(run, chosen.judged)),
    write: (value) => figureText(value, chosen.judged),
    range: (curve) => {
      const known = values(curve);
      if (curve.runs.length < 2 || !known.length) return "";
      return [Math.min(...known), Math.max(...known)]
        .map((value) => figureText(value, chosen.judged)).join(" to ");
    },
  };
}

function byteColumn(key, title, value) {
  return {
    key, title, unit: "MB", value,
    write: (bytes) => amountText(bytes === null ? null : bytes / 1e6),
  };
}

// One unit for the whole column: that of its longest run.
function timeColumn(key, title, name, value) {
  const most = Math.max(0, ...data.runs.map((run) => lastOf(run.total(name)) ?? 0));
  const [unit, size] = unitOf(most, SECONDS, 3);
  return {
    key, title, unit, value,
    write: (seconds) => amountText(seconds === null ? null : seconds / size),
  };
}

function configText(curve, key) {
  return distinct(curve.runs.map((run) => valueText(run.config[key]))).join(", ");
}
function valueText(value) {
  return value === undefined || value === null ? NONE : value === "" ? '""' : String(value);
}

// What a curve's runs had spent at the target, on average; null unless all reached it.
function spent(curve, name, column = (run) => run.total(name)) {
  const target = chosen.targets[chosen.judged];
  const places = curve.runs.map((run) => (name in run.columns ? reachedAt(run, chosen.judged, target) : -1));
  return places.includes(-1) ? null : mean(places.map((k, row) => column(curve.runs[row])[k]));
}

function unreached(curve) {
  if (!curve.runs.some((run) => run.known(chosen.judged).length)) return NONE;
  const target = chosen.targets[chosen.judged];
  const count = curve.runs.filter((run) => reachedAt(run, chosen.judged, target) >= 0).length;
  return count ? `${count} of ${curve.runs.length} did` : "never";
}

const isText = (column) => ["name", "algorithm", "dataset"].includes(column.key);

function buildHead() {
  const [groups, heads] = at("runs").tHead.rows;
  groups.append(...GROUPS.map(([span]) => make("th", { colspan: span, scope: "colgroup" })));
  heads.append(...COLUMNS.map((column) => {
    const button = make("button", { type: "button" }, make("span", {}, column.title));
    if (column.unit) button.append(" ", make("small", {}, column.unit));
    button.addEventListener("click", () => {
      chosen.descending = chosen.sort === column.key && !chosen.descending;
      chosen.sort = column.key;
      sortRows();
    });
    const look = isText(column) ? {} : { class: "number" };
    return make("th", { scope: "col", "data-column": column.key, ...look }, button);
  }));
}

function buildRows() {
  for (const curve of curves) {
    const box = make("input", { type: "checkbox" });
    box.addEventListener("change", () => {
      switchTo(curve, box.checked);
      showSelection();
    });
    const line = shape("line", { x1: 1, x2: 25, y1: 5, y2: 5 });
    const swatch = shape("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, line);
    const name = make("span", {}, curve.name);
    if (curve.runs.length > 1)
      name.append(" ", make("span", { class: "tag" }, `(${curve.runs.length} runs)`));
    if (curve.note) name.append(" ", make("span", { class: "badge" }, curve.note));
    const label = make("label", {}, box, swatch, name);
    curve.cells = COLUMNS.slice(1).map((column) =>
      make("td", { "data-column": column.key, class: isText(column) ? "" : "number" }));
    curve.row = make("tr", {},
      make("th", { scope: "row", "data-column": "name" }, label), ...curve.cells);
    for (const event of ["pointerenter", "focusin"])
      curve.row.addEventListener(event, () => point(curve));
    for (const event of ["pointerleave", "focusout"])
      curve.row.addEventListener(event, () => point(null));
    Object.assign(curve, { box, line });
  }
  at("runs").tBodies[0].replaceChildren(...curves.map((curve) => curve.row));
}

function writeFigures(wanted = () => true) {
  GROUPS.forEach(([, text], index) => {
    at("runs").tHead.rows[0].cells[index].textContent = text();
  });
  for (const curve of curves) {
    curve.values[0] = curve.name;
    curve.cells.forEach((cell, index) => {
      const column = COLUMNS[index + 1];
      if (!wanted(column)) return;
      const value = (curve.values[index + 1] = column.value(curve));
      cell.replaceChildren(column.write ? column.write(value, curve) : value);
      cell.classList.toggle("none", value === null);
      const range = column.range?.(curve);
      if (range) cell.append(make("small", {}, range));
    });
  }
}

function sortRows() {
  const index = COLUMNS.findIndex((column) => column.key === chosen.sort);
  const sign = chosen.descending ? -1 : 1;
  const order = (one, other) => {
    const [a, b] = [one.values[index], other.values[index]];
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  };
  at("runs").tBodies[0].append(...[...curves].sort(order).map((curve) => curve.row));
  for (const cell of at("runs").tHead.rows[1].cells) {
    if (cell.dataset.column !== chosen.sort) cell.removeAttribute("aria-sort");
    else cell.setAttribute("aria-sort", chosen.descending ? "descending" : "ascending");
  }
}

// ---- curves

// A curve's points, with null where it is broken.
function pointsOf(curve) {
  const columns = curve.runs.map((run) => ({
    x: AXES[chosen.axis].of(run),
    y: run.column(chosen.figure),
    round: run.column("round"),
    every: every(run, chosen.figure),
  }));
  const points = [];
  const length = Math.max(0, ...curve.runs.map((run) => run.length));
  for (let k = 0; k < length; k += 1) {
    const point = { x: 0, y: 0, low: Infinity, high: -Infinity, round: null };
    let count = 0;
    let due = false;
    for (const column of columns) {
      const y = column.y[k] ?? null; // none after a run's end
      if (y === null) {
        due ||= column.round[k] % column.every === 0;
        continue;
      }
      count += 1;
      point.x += (column.x[k] - point.x) / count; // running means
      point.y += (y - point.y) / count;
      point.low = Math.min(point.low, y);
      point.high = Math.max(point.high, y);
      point.round ??= column.round[k];
    }
    if (count === 0 ? due : chosen.logY && point.y <= 0) points.push(null);
    else if (count > 0 && !(chosen.logX && point.x <= 0)) points.push(point);
  }
  return points;
}

function makeScale(low, high, from, to, log) {
  const f = log ? Math.log10 : Number;
  const factor = (to - from) / (f(high) - f(low));
  return (value) => from + (f(value) - f(low)) * factor;
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((digit) => digit * power >= 0.8 * rough) ?? 10);
}

// The unit in which an axis that is not logarithmic counts.
const unitOfAxis = (high, units) => unitOf(high, units, units === SECONDS ? 3 : 1);

function linearTicks(low, high, count, units, whole) {
  const size = units ? unitOfAxis(high, units)[1] : 1;
  const step = Math.max(niceStep((high - low) / size / count), whole ? 1 : 0);
  const ticks = [];
  for (let k = Math.ceil(low / size / step - 1e-9); k * step <= high / size + 1e-9 * step; k += 1)
    ticks.push(Number((k * step).toPrecision(12)) * size);
  return ticks;
}

function logTicks(low, high, count, units) {
  const tens = (size, digits) => {
    const values = [];
    for (let k = Math.floor(Math.log10(low / size)); k <= Math.log10(high / size); k += 1)
      for (const digit of digits) values.push(Number(`${digit}e${k}`) * size);
    return values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  };
  // 1 s, 10 s, 1 min, 10 min, 1 h, ...: each unit up to where the next begins.
  const seconds = (digits) => SECONDS.flatMap(([, size], index) => {
    const end = SECONDS[index + 1]?.[1] ?? Infinity;
    return tens(size, digits).filter((value) => (index === 0 || value >= size) && value < end);
  });
  const values = (digits) => (units === SECONDS ? seconds(digits) : tens(1, digits));
  const [fine, coarse] = [values([1, 2, 5]), values([1])];
  if (fine.length < 2) return linearTicks(low, high, count, units, false);
  if (fine.length <= count) return fine;
  if (coarse.length < 2) return fine.filter((_, k) => k % 2 === 0);
  return coarse.filter((_, k) => k % Math.ceil(coarse.length / count) === 0);
}

// Ticks as text, all with as many decimals.
function tickTexts(values, log) {
  const texts = values.map(plainText);
  if (texts.some((text) => /[⁰¹²³⁴⁵⁶⁷⁸⁹]/.test(text))) return log ? values.map(powerText) : texts;
  if (log) return texts;
  const decimals = Math.max(...texts.map((text) => text.split(".")[1]?.length ?? 0));
  return decimals ? values.map((value) => value.toFixed(decimals)) : texts;
}

function unitTexts(values, units, unit) {
  return values.map((value) => {
    if (value === 0) return "0";
    const [name, size] = unit ?? unitOf(value * 1.0001, units);
    return `${plainText(Number((value / size).toPrecision(10)))} ${name}`;
  });
}

let drawn = []; // what hovering finds: the points of the shown curves, on the page

function drawCurves() {
  const shown = shownCurves();
  const plot = at("plot");
  const width = Math.max(200, at("chart").clientWidth);
  const height = Math.round(Math.min(460, Math.max(280, 0.42 * width)));
  const label = chosen.figure ? words(chosen.figure) : "";
  plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
  plot.setAttribute("height", height);
  plot.setAttribute("aria-label", `${label} against ${AXES[chosen.axis].label}: ${shown.length} curves`);
  plot.replaceChildren();
  drawn = [];
  leave();
  at("band-note").hidden = !shown.some((curve) => curve.runs.length > 1);

  const found = chosen.figure ? shown.map((curve) => ({ curve, points: pointsOf(curve) })) : [];
  const known = found.flatMap(({ points }) => points.filter((point) => point !== null));
  if (!known.length) {
    const why = !data.figures.length ? "These runs have no rounds yet."
      : !shown.length ? "No run is switched on."
      : `No run that is switched on has a ${label}${chosen.logY ? " for a log scale" : ""}.`;
    plot.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, why));
    return;
  }
  const scales = drawAxes(plot, width, height, extent(known), label);
  const bands = shape("g");
  const lines = shape("g");
  for (const { curve, points } of found) drawCurve(curve, points, scales, bands, lines);
  plot.append(bands, lines, shape("g", { id: "target-mark" }), shape("g", { id: "cross" }));
  plot.scales = scales;
  drawTarget();
}

// What the axes span: x from 0, y with some room, unless they are logarithmic.
function extent(known) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { x, y, low: least, high: most } of known) {
    [left, right] = [Math.min(left, x), Math.max(right, x)];
    low = Math.min(low, chosen.logY && least <= 0 ? y : least);
    high = Math.max(high, most);
  }
  if (!chosen.logX) left = 0;
  if (left === right) right = chosen.logX ? 2 * left : left + 1;
  if (chosen.logY) {
    const room = high > low ? (high / low) ** 0.03 : 2;
    return { left, right, low: low / room, high: high * room };
  }
  const room = high > low ? 0.03 * (high - low) : Math.abs(high) / 10 || 1;
  return { left, right, low: low - room, high: high + room };
}

// Draw grid, ticks and labels; return where values lie.
function drawAxes(plot, width, height, { left, right, low, high }, label) {
  const { units, label: against } = AXES[chosen.axis];
  const inside = { top: 34, bottom: height - 52, right: width - 26 };
  const rows = Math.max(3, Math.floor((inside.bottom - inside.top) / 46));
  const yTicks = chosen.logY
    ? logTicks(low, high, rows + 2, null)
    : linearTicks(low, high, rows, null, false);
  const yTexts = tickTexts(yTicks, chosen.logY);
  inside.left = 14 + 7.3 * Math.max(...yTexts.map((text) => text.length));
  const toX = makeScale(left, right, inside.left, inside.right, chosen.logX);
  const toY = makeScale(low, high, inside.bottom, inside.top, chosen.logY);
  const columns = Math.max(2, Math.floor((inside.right - inside.left) / 88));
  const xTicks = (chosen.logX
    ? logTicks(left, right, columns, units)
    : linearTicks(left, right, columns, units, chosen.axis === "rounds")
  ).filter((value, k, all) => k + 1 === all.length || toX(all[k + 1]) - toX(value) > 58); // 50 s, 1 min
  const xTexts = units
    ? unitTexts(xTicks, units, chosen.logX ? null : unitOfAxis(right, units))
    : tickTexts(xTicks, chosen.logX);

  const line = (look, x1, x2, y1, y2) => shape("line", { class: look, x1, x2, y1, y2 });
  const text = (look, x, y, anchor, words) =>
    shape("text", { ...look, x, y, "text-anchor": anchor }, words);
  yTicks.forEach((value, k) => {
    const y = tenth(toY(value));
    plot.append(
      line("grid", inside.left, inside.right, y, y),
      text({ dy: "0.35em" }, inside.left - 8, y, "end", yTexts[k]),
    );
  });
  xTicks.forEach((value, k) => {
    const x = tenth(toX(value));
    plot.append(
      line("grid", x, x, inside.top, inside.bottom),
      text({ class: "x-tick" }, x, inside.bottom + 18, "middle", xTexts[k]),
    );
  });
  const middle = (inside.left + inside.right) / 2;
  const log = (is) => (is ? ", log scale" : "");
  plot.append(
    line("axis", inside.left, inside.right, inside.bottom, inside.bottom),
    text({ class: "label", id: "y-label" }, 0, 16, "start", label + log(chosen.logY)),
    text({ class: "label", id: "x-label" }, middle, height - 8, "middle", against + log(chosen.logX)),
  );
  return { inside, low, high, toX, toY };
}

function drawCurve(curve, points, { inside, toX, toY }, bands, lines) {
  const stretches = [[]];
  for (const point of points) {
    if (point === null) stretches.push([]);
    else stretches.at(-1).push(Object.assign(point, { px: toX(point.x), py: toY(point.y) }));
  }
  const pieces = stretches.filter((stretch) => stretch.length);
  const colour = ink(curve.slot);
  const corners = (piece, heightOf) => piece.map((point) => `${tenth(point.px)},${tenth(heightOf(point))}`);
  const path = pieces.map((piece) => `M${corners(piece, ({ py }) => py).join("L")}`).join("");
  curve.path = shape("path", { class: "curve", d: path, "data-name": curve.name });
  curve.path.style.stroke = colour;
  curve.path.style.strokeDasharray = dashes(curve.slot);
  lines.append(curve.path);
  for (const [only] of pieces.filter((piece) => piece.length === 1)) { // no line would show it
    const dot = shape("circle", { cx: tenth(only.px), cy: tenth(only.py), r: 2.5 });
    dot.style.fill = colour;
    lines.append(dot);
  }
  curve.band = null;
  if (curve.runs.length > 1) {
    const clamp = (value) => (chosen.logY && value <= 0 ? inside.bottom : toY(value));
    const outline = pieces.map((piece) => {
      const above = corners(piece, ({ high }) => clamp(high));
      const below = corners(piece, ({ low }) => clamp(low));
      return `M${[...above, ...below.reverse()].join("L")}Z`;
    });
    curve.band = shape("path", { class: "band", d: outline.join(""), "data-name": curve.name });
    curve.band.style.fill = colour;
    bands.append(curve.band);
  }
  drawn.push({ curve, points: pieces.flat() });
}

function drawTarget() {
  const mark = at("target-mark");
  if (!mark) return;
  mark.replaceChildren();
  if (chosen.figure !== chosen.judged) return;
  const { inside, low, high, toY } = at("plot").scales;
  const target = chosen.targets[chosen.judged];
  const text = (y, words) =>
    shape("text", { class: "target-text", x: inside.right, y, "text-anchor": "end" }, words);
  if (target > high) mark.append(text(inside.top - 8, `target ${targetText()} ↑`));
  else if (target < low) mark.append(text(inside.bottom - 6, `target ${targetText()} ↓`));
  else {
    const y = toY(target);
    mark.append(
      shape("line", { class: "target-line", x1: inside.left, x2: inside.right, y1: y, y2: y }),
      text(y - 6, `target ${targetText()}`),
    );
  }
}

// ---- hovering

function point(curve) {
  for (const element of document.querySelectorAll("#plot .near")) element.classList.remove("near");
  at("plot").classList.toggle("pointed", Boolean(curve?.path?.isConnected));
  if (curve?.path?.isConnected) for (const part of [curve.path, curve.band]) part?.classList.add("near");
}

function hover(event) {
  const plot = at("plot");
  const box = plot.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  let nearest = null;
  let least = Infinity;
  for (const { curve, points } of drawn) {
    for (const point of points) {
      const distance = (point.px - x) ** 2 + (point.py - y) ** 2;
      if (distance < least) [least, nearest] = [distance, { curve, point }];
    }
  }
  if (!nearest) return;
  const { curve, point: there } = nearest;
  const { inside } = plot.scales;
  for (const { curve: other } of drawn) other.path.classList.toggle("near", other === curve);
  const dot = shape("circle", { class: "dot", cx: there.px, cy: there.py, r: 4.5 });
  dot.style.fill = ink(curve.slot);
  at("cross").replaceChildren(
    shape("line", { class: "cross", x1: there.px, x2: there.px, y1: inside.top, y2: inside.bottom }),
    shape("line", { class: "cross", x1: inside.left, x2: inside.right, y1: there.py, y2: there.py }),
    dot,
  );
  const axis = AXES[chosen.axis];
  const write = (value) => figureText(value, chosen.figure);
  const range = curve.runs.length > 1 ? ` (${write(there.low)} to ${write(there.high)})` : "";
  const tip = at("tip");
  tip.replaceChildren(
    make("strong", {}, curve.name),
    ...(curve.note ? [make("div", {}, curve.note)] : []),
    make("div", {}, `${words(chosen.figure)} ${write(there.y)}${range}`),
    make("div", {}, `round ${there.round}` +
      (axis.units ? ` · ${axis.name.toLowerCase()} ${withUnit(there.x, axis.units)}` : "")),
  );
  tip.hidden = false;
  const room = at("chart").clientWidth - tip.offsetWidth;
  const beside = there.px + 14 <= room ? there.px + 14 : there.px - 14 - tip.offsetWidth;
  tip.style.left = `${Math.min(room, Math.max(0, beside))}px`;
  tip.style.top = `${Math.max(0, there.py - tip.offsetHeight - 12)}px`;
}

function leave() {
  at("tip").hidden = true;
  at("cross")?.replaceChildren();
  point(null);
}

// ---- configs

function showConfigs(shown) {
  const keys = data.keys.filter((key) => key !== "run-name"); // the row's name says it
  const runs = shown.flatMap((curve) => curve.runs);
  const differs = (key) => runs.some((run) => run.config[key] !== runs[0].config[key]);
  const differing = keys.filter(differs);
  at("config").tHead.rows[0].replaceChildren(
    make("th", { scope: "col" }, "run"),
    ...differing.map((key) => make("th", { scope: "col", "data-key": key }, key)),
  );
  at("config").tBodies[0].replaceChildren(...shown.map((curve) => make("tr", {},
    make("th", { scope: "row" }, curve.name),
    ...differing.map((key) => make("td", {}, configText(curve, key))),
  )));
  at("config-scroll").hidden = !differing.length;
  at("config-note").hidden = differing.length > 0;
  at("config-note").textContent = runs.length > 1
    ? "Nothing: the runs that are switched on have the same config."
    : "Switch on two runs or more to compare them.";
  const common = runs.length ? keys.filter((key) => !differs(key)) : [];
  at("common").hidden = !common.length;
  at("common").querySelector("summary").textContent = `Common to all that are switched on: ${common.length} keys`;
  at("common").querySelector("dl").replaceChildren(...common.map((key) => make("div", {},
    make("dt", {}, key), make("dd", {}, valueText(runs[0].config[key])),
  )));
}

// ---- the page

// After a change of what is shown.
function showSelection() {
  const asked = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean).map(asksFor);
  for (const curve of curves) curve.matches = asked.every((matches) => matches(curve));
  const shown = shownCurves();
  dealColours(shown);
  for (const curve of curves) {
    const on = isOn(curve);
    curve.row.hidden = !curve.matches;
    curve.row.classList.toggle("off", !on);
    curve.box.checked = on;
    curve.line.style.stroke = curve.slot === null ? "var(--line)" : ink(curve.slot);
    curve.line.style.strokeDasharray = curve.slot === null ? "" : dashes(curve.slot);
  }
  at("count").textContent = `${shown.length} of ${curves.length} shown`;
  drawCurves();
  showConfigs(shown);
}

// After a change of what a row is.
function rebuild() {
  makeCurves();
  buildRows();
  rewrite();
  showSelection();
}

// Figures that fall through many powers of ten begin on a log scale.
function chooseFigure(figure) {
  chosen.figure = figure;
  const { low, high } = rangeOf(figure);
  chosen.logY = SMALLER.has(figure) && low > 0 && high > 1000 * low;
  at("log-y").checked = chosen.logY;
  if (!data.figures.includes("test_accuracy")) setJudged(figure);
}

function rewrite() {
  writeFigures();
  sortRows();
}

function moveTarget(value) {
  chosen.targets[chosen.judged] = value;
  writeFigures((column) => column.key.startsWith("target"));
  if (chosen.sort.startsWith("target")) sortRows();
  drawTarget();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").textContent = theme === "dark" ? "Light" : "Dark";
  at("theme").setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
}

function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try { kept = localStorage.getItem("fedapp-theme"); } catch { /* a page from disk may have none */ }
  let own = ["light", "dark"].includes(kept) ? kept : null;
  setTheme(own ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { if (!own) setTheme(dark.matches ? "dark" : "light"); });
  at("theme").addEventListener("click", () => {
    own = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(own);
    try { localStorage.setItem("fedapp-theme", own); } catch { /* then it is not kept */ }
  });
}

function start() {
  followTheme();
  for (const id of ["figure", "judged"])
    at(id).append(...data.figures.map((name) => make("option", { value: name }, words(name))));
  for (const [key, axis] of Object.entries(AXES)) {
    const radio = make("input", { type: "radio", name: "axis", value: key });
    radio.checked = key === chosen.axis;
    radio.addEventListener("change", () => { chosen.axis = key; drawCurves(); });
    at("axis").append(make("label", {}, radio, make("span", {}, axis.name)));
  }
  at("average").checked = chosen.average;
  at("average-label").hidden = !chosen.average;
  const nothing = !data.figures.length;
  for (const id of ["figure", "judged", "target", "target-slider"]) at(id).disabled = nothing;
  if (!nothing) {
    at("figure").value = chosen.figure;
    setJudged(chosen.judged);
    chooseFigure(chosen.figure);
  }
  buildHead();
  makeCurves();
  if (curves.length > MANY) showBest(curves);
  rebuild();

  at("figure").addEventListener("change", () => { chooseFigure(at("figure").value); rewrite(); drawCurves(); });
  at("judged").addEventListener("change", () => { setJudged(at("judged").value); rewrite(); drawTarget(); });
  at("log-y").addEventListener("change", () => { chosen.logY = at("log-y").checked; drawCurves(); });
  at("log-x").addEventListener("change", () => { chosen.logX = at("log-x").checked; drawCurves(); });
  at("average").addEventListener("change", () => { chosen.average = at("average").checked; rebuild(); });
  at("filter").addEventListener("input", showSelection);
  const among = () => curves.filter((curve) => curve.matches);
  at("all").addEventListener("click", () => { among().forEach((c) => switchTo(c, true)); showSelection(); });
  at("none").addEventListener("click", () => { among().forEach((c) => switchTo(c, false)); showSelection(); });
  at("best").addEventListener("click", () => { showBest(among()); showSelection(); });
  at("target-slider").addEventListener("input", () => {
    moveTarget(valueOfSlider());
    at("target").value = targetText();
    at("target-slider").setAttribute("aria-valuetext", targetText());
  });
  at("target").addEventListener("input", () => {
    const value = at("target").valueAsNumber;
    if (Number.isFinite(value)) {
      moveTarget(value);
      placeSlider();
    }
  });
  at("plot").addEventListener("pointermove", hover);
  at("plot").addEventListener("pointerdown", hover);
  at("plot").addEventListener("pointerleave", leave);
  let width = at("chart").clientWidth;
  new ResizeObserver(() => {
    if (at("chart").clientWidth === width) return;
    width = at("chart").clientWidth;
    drawCurves();
  }).observe(at("chart"));
}

start();
