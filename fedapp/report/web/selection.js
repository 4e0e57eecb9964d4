// What the reader chose: the metric and the axes, and which curves are shown in which colours.
import { distinct, mean } from "./runs.js";
import { NONE, trim } from "./texts.js";

const BEST = 10; // curves that the button "Best 10" shows
const WIDTH = 1.7; // of a curve, in pixels

export function initialChoice(data, metrics) {
  const figure = data.figures.length ? data.headline : null;
  return {
    figure,
    judged: figure, // what best, last and the target are about
    axis: "rounds",
    logX: false,
    logY: false,
    average: data.groups.some((group) => group.runs.length > 1),
    sort: "best",
    descending: false,
    targets: Object.fromEntries(
      data.figures.filter((name) => metrics.isFraction(name)).map((name) => [name, data.target])),
  };
}

export const targetText = (chosen) => trim(chosen.targets[chosen.judged], 6);

// One row of the table: a run, or a group of runs that differ in their seeds. `note`: what is not complete, or there twice.
export class Curve {
  constructor(name, label, note, runs) {
    Object.assign(this, { name, label, note, runs });
  }

  // "running", "interrupted", "diverged"; empty if it is complete.
  get state() {
    return this.runs.length === 1 ? this.runs[0].state : "";
  }

  average(figureOfRun) {
    const known = this.runs.map(figureOfRun).filter((value) => value !== null);
    return known.length ? mean(known) : null;
  }

  configText(key) {
    const read = this.runs.filter((run) => !run.unread.has(key));
    return distinct(read.map((run) => run.configText(key))).join(", ") || NONE;
  }
}

export class CurveSelection {
  constructor(data, runs, metrics, chosen) {
    Object.assign(this, { data, runs, metrics, chosen });
    this.off = new Set(); // runs that are switched off
    this.group();
  }

  // Make the curves: one for each run, or for each group of runs.
  group() {
    this.curves = this.chosen.average
      ? this.data.groups.map(({ name, label, note, runs }) =>
        new Curve(name, label, note, runs.map((index) => this.runs[index])))
      : this.runs.map((run) => new Curve(run.name, run.label, run.note, [run]));
    this.matching = this.curves;
  }

  // Keep the curves that match all the words of a filter.
  filter(text) {
    const asked = text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => this.asksFor(word));
    this.matching = this.curves.filter((curve) => asked.every((matches) => matches(curve)));
  }

  // A word of the filter: part of a name, or key=value, where the key may be the end of one.
  asksFor(word) {
    const [key, value] = word.split(/=(.*)/s);
    if (value === undefined) {
      const texts = (run) => [run.name, run.config.algorithm, run.config.dataset, run.config.model];
      return (curve) => [curve.name, curve.label, curve.note, ...curve.runs.flatMap(texts)]
        .some((text) => String(text).toLowerCase().includes(word));
    }
    const ending = this.data.keys.filter((name) => name.endsWith(key));
    const differing = ending.filter((name) => !(name in this.data.common));
    const same = (held) =>
      String(held).toLowerCase() === value || (typeof held === "number" && value !== "" && held === Number(value));
    return (curve) => curve.runs.some((run) =>
      (differing.length ? differing : ending).some((name) => same(run.config[name])));
  }

  isOn(curve) {
    return curve.runs.some((run) => !this.off.has(run));
  }

  switchTo(curve, on) {
    for (const run of curve.runs) {
      if (on) this.off.delete(run);
      else this.off.add(run);
    }
  }

  shown() {
    return this.matching.filter((curve) => this.isOn(curve));
  }

  // Switch on the best of the curves that match, and the others off.
  showBest() {
    this.ranked(this.matching).forEach((curve, place) => this.switchTo(curve, place < BEST));
  }

  // Curves, the best first.
  ranked(curves) {
    const name = this.chosen.judged;
    const rank = (curve) => {
      const best = curve.average((run) => run.result(name));
      return best === null ? Number.MAX_VALUE : this.metrics.isSmallerBetter(name) ? best : -best;
    };
    const ranks = new Map(curves.map((curve) => [curve, rank(curve)]));
    return [...curves].sort((a, b) => ranks.get(a) - ranks.get(b));
  }
}

// The colours and dashes of the curves that are shown.
export class Palette {
  constructor(colours, dashes) {
    this.colours = colours;
    this.patterns = dashes.map((lengths) => lengths.map((length) => trim(WIDTH * length, 3)).join(" "));
    this.slots = new Map();
  }

  // A curve has the look of its place among all curves, whichever are shown: as in pictures. Of those
  // that are shown, one whose look is taken, as there are more curves than looks, has the next one.
  deal(curves, shown) {
    const looks = this.colours.length * this.patterns.length; // they have no factor in common
    const taken = new Set();
    this.slots = new Map(shown.map((curve) => {
      let slot = curves.indexOf(curve) % looks;
      while (taken.has(slot) && taken.size < looks) slot = (slot + 1) % looks;
      taken.add(slot);
      return [curve, slot];
    }));
  }

  ink(curve) {
    if (!this.slots.has(curve)) return "var(--line)";
    const colour = this.colours[this.slots.get(curve) % this.colours.length];
    if (colour === "#000000") return "var(--ink)"; // black would be lost on a dark page
    return `light-dark(${colour}, color-mix(in oklab, ${colour} 82%, white))`;
  }

  dashes(curve) {
    if (!this.slots.has(curve)) return "";
    return this.patterns[this.slots.get(curve) % this.patterns.length]; // as in pictures
  }
}
