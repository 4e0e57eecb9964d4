// Runs and their metrics, as the page's data describe them.
import { figureText, valueText } from "./texts.js";

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
// The standard deviation of a sample; 0 of a single value.
export function deviation(values) {
  const middle = mean(values);
  const squares = values.reduce((sum, value) => sum + (value - middle) ** 2, 0);
  return values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0;
}
export const distinct = (values) => [...new Set(values)];
export const lastOf = (values) => (values.length ? values.at(-1) : null);

// What is known about metrics: their labels, which direction is better, and how they are written.
export class Metrics {
  constructor(about) {
    this.about = about;
  }

  label(name) {
    return this.about[name].label;
  }

  isSmallerBetter(name) {
    return this.about[name].smallerIsBetter;
  }

  isFraction(name) {
    return this.about[name].fraction;
  }

  text(name, value) {
    return figureText(value, this.isFraction(name));
  }
}

export class Run {
  constructor({ name, label, state, note, config, unread, length, columns, results }, common, metrics, algorithms) {
    Object.assign(this, { name, label, state, note, results });
    this.unread = new Set(unread); // keys that its result does not depend on
    this.config = { ...common, ...config };
    this.length = length;
    this.metrics = metrics;
    this.algorithms = algorithms; // in the config -> in papers
    this.totals = {};
    this.columns = Object.fromEntries(Object.entries(columns).map(([key, column]) =>
      [key, Array.isArray(column) ? column : Array(length).fill(column)]));
  }

  // A key's value for people.
  configText(key) {
    const value = this.config[key];
    return (key === "algorithm" && this.algorithms[value]) || valueText(value);
  }

  has(name) {
    return name in this.columns;
  }

  column(name) {
    return this.columns[name] ?? Array(this.length).fill(null);
  }

  known(name) {
    return (this.columns[name] ?? []).filter((value) => value !== null);
  }

  // Sums up to each round.
  total(name) {
    let sum = 0;
    return (this.totals[name] ??= this.column(name).map((value) => (sum += value ?? 0)));
  }

  best(name) {
    const known = this.known(name);
    if (!known.length) return null;
    return known.reduce((a, b) => (this.metrics.isSmallerBetter(name) ? Math.min(a, b) : Math.max(a, b)));
  }

  // The value in the round that is best on validation samples; without any, the best.
  result(name) {
    return this.results[name] ?? this.best(name);
  }

  // Where the run reaches a target for the first time: the index of its round, or -1.
  reachedAt(name, target) {
    const enough = this.metrics.isSmallerBetter(name) ? (v) => v <= target : (v) => v >= target;
    return this.column(name).findIndex((value) => value !== null && enough(value));
  }

  // Rounds between evaluations: in between, a missing figure is nothing; where one was due, it was not finite.
  period(name) {
    const period = this.config["eval-every"] || 1;
    const column = this.column(name);
    const between = this.column("round").some(
      (round, k) => round % period && k < this.length - 1 && column[k] !== null,
    );
    return between ? 1 : period;
  }
}

export function rangeOf(runs, name) {
  let [low, high] = [Infinity, -Infinity];
  for (const run of runs)
    for (const value of run.known(name)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return { low, high };
}
