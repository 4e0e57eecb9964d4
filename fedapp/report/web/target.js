// The target: which metric it is about, and the slider and the number that set it.
import { at } from "./elements.js";
import { rangeOf } from "./runs.js";
import { targetText } from "./selection.js";

export function makeTarget({ chosen, runs, metrics, onMove }) {
  function range() {
    if (metrics.isFraction(chosen.judged)) return { low: 0, high: 1, log: false };
    const { low, high } = rangeOf(runs, chosen.judged);
    return { low, high, log: low > 0 && high > 100 * low };
  }

  function placeSlider() {
    const { low, high, log } = range();
    const scale = log ? Math.log : Number;
    const share = (scale(chosen.targets[chosen.judged]) - scale(low)) / (scale(high) - scale(low));
    at("target-slider").value = Math.round(1000 * (Number.isFinite(share) ? share : 0));
    at("target-slider").setAttribute("aria-valuetext", targetText(chosen));
  }

  function valueOfSlider() {
    const { low, high, log } = range();
    const share = at("target-slider").value / 1000;
    const value = log ? low * (high / low) ** share : low + share * (high - low);
    return Number(value.toPrecision(metrics.isFraction(chosen.judged) ? 6 : 3));
  }

  function judge(figure) {
    chosen.judged = figure;
    if (chosen.sort === "best") chosen.descending = !metrics.isSmallerBetter(figure); // the best first
    at("judged").value = figure;
    if (!(figure in chosen.targets)) {
      const bests = runs.map((run) => run.best(figure)).filter((value) => value !== null);
      bests.sort((a, b) => a - b);
      chosen.targets[figure] = Number(bests[Math.floor(bests.length / 2)].toPrecision(2));
    }
    at("target").value = targetText(chosen);
    placeSlider();
  }

  at("target-slider").addEventListener("input", () => {
    chosen.targets[chosen.judged] = valueOfSlider();
    onMove();
    at("target").value = targetText(chosen);
    at("target-slider").setAttribute("aria-valuetext", targetText(chosen));
  });
  at("target").addEventListener("input", () => {
    const value = at("target").valueAsNumber;
    if (!Number.isFinite(value)) return;
    chosen.targets[chosen.judged] = value;
    onMove();
    placeSlider();
  });
  return { judge };
}
