// The columns of the table of runs: what a curve is sorted by, and how it is written, if not as that value.
import { deviation, lastOf, mean } from "./runs.js";
import { targetText } from "./selection.js";
import { BYTES, NONE, SECONDS, amountText, grouped, unitOf } from "./texts.js";

// Return the columns, and the groups of columns with the texts above them.
export function makeColumns({ chosen, runs, metrics }) {
  const totalOf = (name) => (curve) =>
    curve.average((run) => (run.has(name) ? lastOf(run.total(name)) : null));

  function figureColumn(key, of) {
    const values = (curve) =>
      curve.runs.map((run) => of(run, chosen.judged)).filter((value) => value !== null);
    return {
      key, title: key,
      value: (curve) => curve.average((run) => of(run, chosen.judged)),
      write: (value) => (value === null ? NONE : metrics.text(chosen.judged, value)),
      range: (curve) => {
        const known = values(curve);
        if (curve.runs.length < 2 || !known.length) return "";
        return `± ${metrics.text(chosen.judged, deviation(known))}`;
      },
    };
  }

  // One unit for the whole column: that of the run in the middle.
  function costColumn(key, title, units, least, name, value) {
    const totals = runs.map((run) => lastOf(run.total(name)) ?? 0).sort((a, b) => a - b);
    const [unit, size] = unitOf(totals[Math.floor(totals.length / 2)] ?? 0, units, least);
    return {
      key, title, unit, value,
      write: (amount) => amountText(amount === null ? null : amount / size),
    };
  }
  const byteColumn = (...of) => costColumn(of[0], of[1], BYTES, 1, of[2], of[3]);
  const timeColumn = (...of) => costColumn(of[0], of[1], SECONDS, 3, of[2], of[3]);

  // What a curve's runs had spent at the target, on average; null unless all reached it.
  function spent(curve, name, column = (run) => run.total(name)) {
    if (!chosen.judged) return null;
    const target = chosen.targets[chosen.judged];
    const places = curve.runs.map((run) => (run.has(name) ? run.reachedAt(chosen.judged, target) : -1));
    return places.includes(-1) ? null : mean(places.map((k, row) => column(curve.runs[row])[k]));
  }

  function unreached(curve) {
    if (!curve.runs.some((run) => run.known(chosen.judged).length)) return NONE;
    const target = chosen.targets[chosen.judged];
    const count = curve.runs.filter((run) => run.reachedAt(chosen.judged, target) >= 0).length;
    return count ? `${count} of ${curve.runs.length} did` : "never";
  }

  const columns = [
    { key: "name", title: "run", isText: true, value: (curve) => curve.label },
    figureColumn("best", (run, figure) => run.result(figure)),
    figureColumn("last", (run, figure) => lastOf(run.known(figure))),
    {
      key: "rounds", title: "rounds",
      value: (curve) => curve.average((run) => run.length),
      write: (value) => (value === null ? NONE : grouped(value, 1)),
    },
    byteColumn("uplink", "uplink", "uplink_bytes", totalOf("uplink_bytes")),
    byteColumn("downlink", "downlink", "downlink_bytes", totalOf("downlink_bytes")),
    byteColumn("total", "total", "total_bytes", totalOf("total_bytes")),
    timeColumn("simulated", "simulated", "simulated_seconds", totalOf("simulated_seconds")),
    timeColumn("wall", "wall", "wall_seconds", totalOf("wall_seconds")),
    {
      key: "target-rounds", title: "rounds",
      value: (curve) => spent(curve, "round", (run) => run.column("round")),
      write: (value, curve) => (value === null ? unreached(curve) : grouped(value, 1)),
    },
    byteColumn("target-uplink", "uplink", "uplink_bytes", (curve) => spent(curve, "uplink_bytes")),
    byteColumn("target-total", "total", "total_bytes", (curve) => spent(curve, "total_bytes")),
    timeColumn("target-simulated", "simulated", "simulated_seconds",
      (curve) => spent(curve, "simulated_seconds")),
    ...["algorithm", "dataset"].map((key) =>
      ({ key, title: key, isText: true, value: (curve) => curve.configText(key) })),
  ];
  const groups = [
    { span: 1, text: () => "" },
    { span: 2, text: () => (chosen.judged ? metrics.label(chosen.judged) : "") },
    { span: 6, text: () => "whole run" },
    { span: 4, text: () => (chosen.judged ? `to target ${targetText(chosen)}` : "to target") },
    { span: 2, text: () => "" },
  ];
  return { columns, groups };
}
