// The page: puts its parts together, and redraws what a change of the controls concerns.
import { AXES } from "./axes.js";
import { makeChart } from "./chart.js";
import { makeColumns } from "./columns.js";
import { showConfigs } from "./configs.js";
import { at, make } from "./elements.js";
import { Metrics, Run, rangeOf } from "./runs.js";
import { CurveSelection, Palette, initialChoice } from "./selection.js";
import { makeTable } from "./table.js";
import { makeTarget } from "./target.js";
import { followTheme } from "./theme.js";

const MANY = 20; // curves, above which only the best are shown at first

function start(data) {
  const metrics = new Metrics(data.metrics);
  const runs = data.runs.map((run) => new Run(run, data.common, metrics));
  const chosen = initialChoice(data, metrics);
  const selection = new CurveSelection(data, runs, metrics, chosen);
  const palette = new Palette(data.colours);
  const hasFigures = data.figures.length > 0;
  const chart = makeChart({ chosen, selection, palette, metrics, hasFigures });
  const table = makeTable({
    chosen, selection, palette, ...makeColumns({ chosen, runs, metrics }),
    onSwitch: showSelection, onPoint: chart.point,
  });
  const target = makeTarget({
    chosen, runs, metrics,
    onMove: () => { table.rewriteTarget(); chart.drawTarget(); },
  });

  // After a change of what is shown.
  function showSelection() {
    selection.filter(at("filter").value);
    const shown = selection.shown();
    palette.deal(shown);
    table.mark();
    chart.draw();
    showConfigs(data.keys, shown);
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
    for (const id of ["figure", "judged"])
      at(id).append(...data.figures.map((name) => make("option", { value: name }, metrics.label(name))));
    for (const [key, axis] of Object.entries(AXES)) {
      const radio = make("input", { type: "radio", name: "axis", value: key });
      radio.checked = key === chosen.axis;
      radio.addEventListener("change", () => { chosen.axis = key; chart.draw(); });
      at("axis").append(make("label", {}, radio, make("span", {}, axis.name)));
    }
    at("average").checked = chosen.average;
    at("average-label").hidden = !chosen.average;
    for (const id of ["figure", "judged", "target", "target-slider"]) at(id).disabled = !hasFigures;
    if (hasFigures) {
      at("figure").value = chosen.figure;
      target.judge(chosen.judged);
      chooseFigure(chosen.figure);
    }
  }

  function listen() {
    at("figure").addEventListener("change", () => { chooseFigure(at("figure").value); table.rewrite(); chart.draw(); });
    at("judged").addEventListener("change", () => { target.judge(at("judged").value); table.rewrite(); chart.drawTarget(); });
    at("log-y").addEventListener("change", () => { chosen.logY = at("log-y").checked; chart.draw(); });
    at("log-x").addEventListener("change", () => { chosen.logX = at("log-x").checked; chart.draw(); });
    at("average").addEventListener("change", () => { chosen.average = at("average").checked; rebuild(); });
    at("filter").addEventListener("input", showSelection);
    const switchAll = (on) => selection.matching.forEach((curve) => selection.switchTo(curve, on));
    at("all").addEventListener("click", () => { switchAll(true); showSelection(); });
    at("none").addEventListener("click", () => { switchAll(false); showSelection(); });
    at("best").addEventListener("click", () => { selection.showBest(); showSelection(); });
  }

  followTheme();
  fillControls();
  if (selection.curves.length > MANY) selection.showBest();
  rebuild();
  listen();
}

start(JSON.parse(at("data").textContent));
