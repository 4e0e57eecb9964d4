// The chart: curves with their bands, the target, and what the reader points at.
import { AXES, linearTicks, logTicks, makeScale, tickTexts, unitOfAxis, unitTexts } from "./axes.js";
import { at, make, shape } from "./elements.js";
import { stateMark } from "./marks.js";
import { makeRuler, placeLabels, shortened } from "./placing.js";
import { deviation, mean } from "./runs.js";
import { targetText } from "./selection.js";
import { tenth, withUnit } from "./texts.js";

const WIDE = 640; // pixels, from which all curves are labelled
const FEW = 5; // curves that are labelled on a narrower page

export function makeChart({ chosen, selection, palette, metrics, hasFigures }) {
  let drawn = new Map(); // curve -> its points on the page, and the elements that show it
  let scales = null;
  const widthOf = makeRuler();

  // A curve's points, with null where it is broken.
  function pointsOf(curve) {
    const columns = curve.runs.map((run) => ({
      x: AXES[chosen.axis].of(run),
      y: run.column(chosen.figure),
      round: run.column("round"),
      every: run.period(chosen.figure),
    }));
    const points = [];
    const length = Math.max(0, ...curve.runs.map((run) => run.length));
    for (let k = 0; k < length; k += 1) {
      const [xs, ys] = [[], []];
      let [round, due] = [null, false];
      for (const column of columns) {
        const y = column.y[k] ?? null; // none after a run's end
        if (y === null) {
          due ||= column.round[k] % column.every === 0;
          continue;
        }
        xs.push(column.x[k]);
        ys.push(y);
        round ??= column.round[k];
      }
      if (!ys.length) {
        if (due) points.push(null);
        continue;
      }
      const [x, y, std] = [mean(xs), mean(ys), deviation(ys)];
      // No log scale shows what is not above 0: there, the band ends at the lowest run.
      const low = chosen.logY && y - std <= 0 ? Math.min(...ys) : y - std;
      if (chosen.logY && y <= 0) points.push(null);
      else if (!(chosen.logX && x <= 0)) points.push({ x, y, std, low, high: y + std, round });
    }
    return points;
  }

  function draw() {
    const shown = selection.shown();
    const plot = at("plot");
    const width = Math.max(200, at("chart").clientWidth);
    const height = Math.round(Math.min(640, Math.max(360, 0.55 * width)));
    const label = chosen.figure ? metrics.label(chosen.figure) : "";
    const against = metrics.label(AXES[chosen.axis].metric);
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.setAttribute("height", height);
    plot.setAttribute("aria-label", `${label} against ${against}: ${shown.length} curves`);
    plot.replaceChildren();
    drawn = new Map();
    leave();
    at("band-note").hidden = !shown.some((curve) => curve.runs.length > 1);

    const found = chosen.figure ? shown.map((curve) => ({ curve, points: pointsOf(curve) })) : [];
    const known = found.flatMap(({ points }) => points.filter((point) => point !== null));
    if (!known.length) {
      const why = !hasFigures ? "These runs have no rounds yet."
        : !shown.length ? "No run is selected."
        : `No selected run has a ${label}${chosen.logY ? " for a log scale" : ""}.`;
      plot.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, why));
      return;
    }
    const isLabelled = width >= WIDE || shown.length <= FEW;
    const longest = Math.max(...shown.map((curve) => widthOf(curve.label)));
    const most = width >= WIDE ? 0.24 * width : 0.36 * width;
    const room = isLabelled ? Math.min(most, longest + 16) : 14;
    scales = drawAxes(plot, width, height, room, extent(known), label, against);
    const bands = shape("g");
    const lines = shape("g");
    for (const { curve, points } of found) drawn.set(curve, drawCurve(curve, points, bands, lines));
    const labels = shape("g", { id: "labels" });
    plot.append(bands, lines, shape("g", { id: "target-mark" }), labels, shape("g", { id: "cross" }));
    drawTarget();
    if (isLabelled) drawLabels(labels, room - 12);
  }

  // Write the curves' names at their ends, the best first.
  function drawLabels(group, most) {
    const { inside } = scales;
    const ends = selection.ranked([...drawn.keys()]).filter((curve) => drawn.get(curve).points.length);
    const labels = ends.map((curve) => {
      const { px, py } = drawn.get(curve).points.at(-1);
      const text = shortened(curve.label, most, widthOf);
      return { curve, px, py, text, width: widthOf(text), x: px + (curve.state ? 13 : 8), y: py };
    });
    placeLabels(labels, inside.top - 4, inside.bottom - 6).forEach((y, k) => {
      if (y === null) return;
      const { curve, px, py, text, x } = labels[k];
      const name = shape("text", { class: "name", x: tenth(x), y: tenth(y), dy: "0.33em", "data-name": curve.name }, text);
      name.style.fill = palette.ink(curve);
      name.append(shape("title", {}, curve.label));
      if (Math.abs(y - py) > 6) { // where it belongs, if it had to be moved
        const line = shape("line", { class: "leader", x1: tenth(px + 1), y1: tenth(py), x2: tenth(x - 2), y2: tenth(y) });
        line.style.stroke = palette.ink(curve);
        group.append(line);
      }
      group.append(name);
      drawn.get(curve).name = name;
    });
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
  function drawAxes(plot, width, height, room, { left, right, low, high }, label, against) {
    const { units } = AXES[chosen.axis];
    const inside = { top: 34, bottom: height - 52, right: width - room };
    const rows = Math.max(3, Math.floor((inside.bottom - inside.top) / 46));
    const yTicks = chosen.logY
      ? logTicks(low, high, rows + 2, null)
      : linearTicks(low, high, rows, null, false);
    const yTexts = tickTexts(yTicks, chosen.logY);
    inside.left = 14 + 7.3 * Math.max(...yTexts.map((text) => text.length));
    const toX = makeScale(left, right, inside.left, inside.right, chosen.logX);
    const toY = makeScale(low, high, inside.bottom, inside.top, chosen.logY);
    const columns = Math.max(2, Math.floor((inside.right - inside.left) / (units ? 88 : 75)));
    const xTicks = chosen.logX
      ? logTicks(left, right, columns, units)
        .filter((value, k, all) => k + 1 === all.length || toX(all[k + 1]) - toX(value) > 58) // 50 s, 1 min
      : linearTicks(left, right, columns, units, chosen.axis === "rounds");
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

  function drawCurve(curve, points, bands, lines) {
    const { inside, toX, toY } = scales;
    const stretches = [[]];
    for (const point of points) {
      if (point === null) stretches.push([]);
      else stretches.at(-1).push({ ...point, px: toX(point.x), py: toY(point.y) });
    }
    const pieces = stretches.filter((stretch) => stretch.length);
    const colour = palette.ink(curve);
    const corners = (piece, heightOf) => piece.map((point) => `${tenth(point.px)},${tenth(heightOf(point))}`);
    const corridor = pieces.map((piece) => `M${corners(piece, ({ py }) => py).join("L")}`).join("");
    const path = shape("path", { class: "curve", d: corridor, "data-name": curve.name });
    path.style.stroke = colour;
    path.style.strokeDasharray = palette.dashes(curve);
    lines.append(path);
    for (const [only] of pieces.filter((piece) => piece.length === 1)) { // no line would show it
      const dot = shape("circle", { cx: tenth(only.px), cy: tenth(only.py), r: 2.5 });
      dot.style.fill = colour;
      lines.append(dot);
    }
    let band = null;
    if (curve.runs.length > 1) {
      const clamp = (value) => (chosen.logY && value <= 0 ? inside.bottom : toY(value));
      const outline = pieces.map((piece) => {
        const above = corners(piece, ({ high }) => clamp(high));
        const below = corners(piece, ({ low }) => clamp(low));
        return `M${[...above, ...below.reverse()].join("L")}Z`;
      });
      band = shape("path", { class: "band", d: outline.join(""), "data-name": curve.name });
      band.style.fill = colour;
      bands.append(band);
    }
    const all = pieces.flat();
    if (curve.state && all.length) {
      const mark = stateMark(curve.state, tenth(all.at(-1).px), tenth(all.at(-1).py));
      mark.style.stroke = colour;
      lines.append(mark);
    }
    return { points: all, path, band };
  }

  function drawTarget() {
    const mark = at("target-mark");
    if (!mark) return;
    mark.replaceChildren();
    if (chosen.figure !== chosen.judged) return;
    const { inside, low, high, toY } = scales;
    const target = chosen.targets[chosen.judged];
    const text = (y, words, where = { x: inside.left + 6 }) =>
      shape("text", { class: "target-text", ...where, y }, words);
    const atRight = { x: inside.right - 6, "text-anchor": "end" }; // the metric's name is at the left
    if (target > high) mark.append(text(inside.top - 8, `target ${targetText(chosen)} ↑`, atRight));
    else if (target < low) mark.append(text(inside.bottom - 6, `target ${targetText(chosen)} ↓`));
    else {
      const y = toY(target);
      mark.append(
        shape("line", { class: "target-line", x1: inside.left, x2: inside.right, y1: y, y2: y }),
        text(y - 6, `target ${targetText(chosen)}`),
      );
    }
  }

  // Make a curve stand out; null: none.
  function point(curve) {
    for (const element of document.querySelectorAll("#plot .near")) element.classList.remove("near");
    const { path, band, name } = drawn.get(curve) ?? {};
    at("plot").classList.toggle("pointed", Boolean(path));
    for (const part of [path, band, name]) part?.classList.add("near");
  }

  function hover(event) {
    const box = at("plot").getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let nearest = null;
    let least = Infinity;
    for (const [curve, { points }] of drawn) {
      for (const point of points) {
        const distance = (point.px - x) ** 2 + (point.py - y) ** 2;
        if (distance < least) [least, nearest] = [distance, { curve, point }];
      }
    }
    if (!nearest) return;
    const { curve, point: there } = nearest;
    const { inside } = scales;
    for (const [other, { path }] of drawn) path.classList.toggle("near", other === curve);
    const dot = shape("circle", { class: "dot", cx: there.px, cy: there.py, r: 4.5 });
    dot.style.fill = palette.ink(curve);
    at("cross").replaceChildren(
      shape("line", { class: "cross", x1: there.px, x2: there.px, y1: inside.top, y2: inside.bottom }),
      shape("line", { class: "cross", x1: inside.left, x2: inside.right, y1: there.py, y2: there.py }),
      dot,
    );
    showTip(curve, there);
  }

  function showTip(curve, there) {
    const axis = AXES[chosen.axis];
    const write = (value) => metrics.text(chosen.figure, value);
    const range = curve.runs.length > 1 ? ` ± ${write(there.std)}` : "";
    const tip = at("tip");
    tip.replaceChildren(
      make("strong", {}, curve.label),
      ...(curve.note ? [make("div", {}, curve.note)] : []),
      make("div", {}, `${metrics.label(chosen.figure)} ${write(there.y)}${range}`),
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

  at("plot").addEventListener("pointermove", hover);
  at("plot").addEventListener("pointerdown", hover);
  at("plot").addEventListener("pointerleave", leave);
  let width = at("chart").clientWidth;
  new ResizeObserver(() => {
    if (at("chart").clientWidth === width) return;
    width = at("chart").clientWidth;
    draw();
  }).observe(at("chart"));
  return { draw, drawTarget, point };
}
