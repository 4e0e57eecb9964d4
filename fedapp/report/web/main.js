// The page: puts its parts together, and redraws what a change of the controls concerns.
import { applySelection, readAddress, writeAddress } from "./address.js";
import { AXES } from "./axes.js";
import { makeChart } from "./chart.js";
import { makeColumns } from "./columns.js";
import { showConfigs } from "./configs.js";
import { at, make } from "./elements.js";
import { saveCsv, savePng } from "./export.js";
import { Metrics, Run, rangeOf } from "./runs.js";
import { CurveSelection, Palette, initialChoice } from "./selection.js";
import { makeTable } from "./table.js";
import { makeTarget } from "./target.js";
import { followTheme } from "./theme.js";

const MANY = 20; // curves, above which only the best are shown at first

// Fill the page with data, as the address says.
function start(data) {
  const metrics = new Metrics(data.metrics);
  const runs = data.runs.map((run) => new Run(run, data.common, metrics, data.algorithms));
  const said = readAddress();
  const chosen = initialChoice(data, metrics);
  if (said.get("average") === "0") chosen.average = false;
  const selection = new CurveSelection(data, runs, metrics, chosen);
  const palette = new Palette(data.colours, data.dashes);
  const hasFigures = data.figures.length > 0;
  const chart = makeChart({ chosen, selection, palette, metrics, hasFigures });
  const { columns, groups } = makeColumns({ chosen, runs, metrics });
  const table = makeTable({
    chosen, selection, palette, columns, groups,
    onSwitch: () => { showSelection(); keep(); }, onSort: keep, onPoint: chart.point,
  });
  const target = makeTarget({
    chosen, runs, metrics,
    onMove: () => { table.rewriteTarget(); chart.drawTarget(); keep(); },
  });

  function keep() {
    writeAddress(chosen, selection, at("filter").value);
  }

  // After a change of what is shown.
  function showSelection() {
    selection.filter(at("filter").value);
    const shown = selection.shown();
    palette.deal(selection.curves, shown);
    table.mark();
    chart.draw();
    showConfigs(data, shown, chosen.average);
  }

  // After a change of what a row is.
  function rebuild() {
    selection.group();
    table.build();
    table.rewrite();
    showSelection();
  }

  // Figures that fall through many powers of ten begin on a log scale.
  function chooseFigure(figure) {
    chosen.figure = figure;
    const { low, high } = rangeOf(runs, figure);
    chosen.logY = metrics.isSmallerBetter(figure) && low > 0 && high > 1000 * low;
    at("log-y").checked = chosen.logY;
    if (!metrics.isFraction(data.headline)) target.judge(figure);
  }

  function fillControls() {
    at("about").textContent = data.about;
    for (const id of ["figure", "judged"])
      at(id).append(...data.figures.map((name) => make("option", { value: name }, metrics.label(name))));
    if (Object.hasOwn(AXES, said.get("x"))) chosen.axis = said.get("x");
    for (const [key, axis] of Object.entries(AXES)) {
      const radio = make("input", { type: "radio", name: "axis", value: key });
      radio.checked = key === chosen.axis;
      radio.addEventListener("change", () => { chosen.axis = key; chart.draw(); keep(); });
      at("axis").append(make("label", {}, radio, make("span", {}, axis.name)));
    }
    at("average").checked = chosen.average;
    at("average-label").hidden = !data.groups.some((group) => group.runs.length > 1);
    at("filter").value = said.get("filter") ?? "";
    chosen.logX = at("log-x").checked = said.get("log-x") === "1";
    for (const id of ["figure", "judged", "target", "target-slider"]) at(id).disabled = !hasFigures;
    if (hasFigures) chooseWhatIsSaid();
  }

  function chooseWhatIsSaid() {
    const known = (key, otherwise) => (data.figures.includes(said.get(key)) ? said.get(key) : otherwise);
    const judged = known("judged", chosen.judged);
    const aim = Number(said.get("target") ?? NaN);
    if (Number.isFinite(aim)) chosen.targets[judged] = aim;
    target.judge(judged);
    chooseFigure(known("metric", chosen.figure));
    at("figure").value = chosen.figure;
    target.judge(judged);
    if (said.has("log-y")) chosen.logY = at("log-y").checked = said.get("log-y") === "1";
    const [, minus, key] = /^(-?)(.*)$/s.exec(said.get("sort") ?? "");
    if (columns.some((column) => column.key === key))
      Object.assign(chosen, { sort: key, descending: minus === "-" });
  }

  function listen() {
    const on = (id, event, change) => at(id).addEventListener(event, () => { change(); keep(); });
    on("figure", "change", () => { chooseFigure(at("figure").value); table.rewrite(); chart.draw(); });
    on("judged", "change", () => { target.judge(at("judged").value); table.rewrite(); chart.draw(); });
    on("log-y", "change", () => { chosen.logY = at("log-y").checked; chart.draw(); });
    on("log-x", "change", () => { chosen.logX = at("log-x").checked; chart.draw(); });
    on("average", "change", () => { chosen.average = at("average").checked; rebuild(); });
    on("filter", "input", showSelection);
    const switchAll = (isOn) => selection.matching.forEach((curve) => selection.switchTo(curve, isOn));
    on("all", "click", () => { switchAll(true); showSelection(); });
    on("none", "click", () => { switchAll(false); showSelection(); });
    on("best", "click", () => { selection.showBest(); showSelection(); });
    at("save-csv").addEventListener("click", () => saveCsv(table.content()));
    at("save-png").addEventListener("click", savePng);
  }

  fillControls();
  if (!applySelection(said, selection) && selection.curves.length > MANY) selection.showBest();
  rebuild();
  listen();
}

// Replace the page's content without moving what the reader sees.
function restart(empty, data) {
  const page = document.querySelector("main");
  const scrolled = [...page.querySelectorAll(".scroll")].map(({ scrollLeft, scrollTop }) => [scrollLeft, scrollTop]);
  const isOpen = at("common").open;
  const active = document.activeElement;
  const [id, range] = [active?.id, active?.type === "search" ? [active.selectionStart, active.selectionEnd] : null];
  const [x, y] = [scrollX, scrollY];
  page.replaceWith(empty.cloneNode(true));
  start(data);
  at("common").open = isOpen;
  document.querySelectorAll("main .scroll").forEach((box, k) => box.scrollTo(...scrolled[k]));
  if (id && page.contains(active)) {
    at(id)?.focus({ preventScroll: true });
    if (range) at(id)?.setSelectionRange(...range);
  }
  scrollTo(x, y);
}

// Show the data that are in the page. Return a function that shows others instead.
export function openPage() {
  const empty = document.querySelector("main").cloneNode(true);
  let data = JSON.parse(at("data").textContent);
  followTheme();
  start(data);
  const refresh = (newer) => { data = newer; restart(empty, data); };
  addEventListener("hashchange", () => restart(empty, data));
  return refresh;
}
