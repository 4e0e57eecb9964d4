// Config differences of the curves that are shown, and what they have in common.
import { at, make } from "./elements.js";

// Only of keys that a run's result depends on; seeds are not compared where they are averaged.
export function showConfigs(data, shown, isAveraged) {
  const hidden = new Set([...data.ignored, "run-name", ...(isAveraged ? ["seed"] : [])]);
  const keys = data.keys.filter((key) => !hidden.has(key));
  const runs = shown.flatMap((curve) => curve.runs);
  const differs = (key) => {
    const reading = runs.filter((run) => !run.unread.has(key));
    return reading.some((run) => run.config[key] !== reading[0].config[key]);
  };
  const differing = keys.filter(differs);
  at("config").tHead.rows[0].replaceChildren(
    make("th", { scope: "col" }, "run"),
    ...differing.map((key) => make("th", { scope: "col", "data-key": key }, key)),
  );
  at("config").tBodies[0].replaceChildren(...shown.map((curve) => make("tr", {},
    make("th", { scope: "row" }, curve.label),
    ...differing.map((key) => make("td", {}, curve.configText(key))),
  )));
  at("config-scroll").hidden = !differing.length;
  at("config-note").hidden = differing.length > 0;
  at("config-note").textContent = runs.length > 1
    ? "None: the selected runs have the same config, apart from seeds and places."
    : "Select two runs or more to compare them.";
  const common = runs.length ? keys.filter((key) => !differs(key) && !runs.some((run) => run.unread.has(key))) : [];
  at("common").hidden = !common.length;
  at("common").querySelector("summary").textContent = `The same in all selected runs: ${common.length} keys`;
  at("common").querySelector("dl").replaceChildren(...common.map((key) => make("div", {},
    make("dt", {}, key), make("dd", {}, runs[0].configText(key)),
  )));
}
