// What the configs of the curves that are shown differ in, and what they have in common.
import { at, make } from "./elements.js";
import { valueText } from "./texts.js";

export function showConfigs(allKeys, shown) {
  const keys = allKeys.filter((key) => key !== "run-name"); // the row's name says it
  const runs = shown.flatMap((curve) => curve.runs);
  const differs = (key) => runs.some((run) => run.config[key] !== runs[0].config[key]);
  const differing = keys.filter(differs);
  at("config").tHead.rows[0].replaceChildren(
    make("th", { scope: "col" }, "run"),
    ...differing.map((key) => make("th", { scope: "col", "data-key": key }, key)),
  );
  at("config").tBodies[0].replaceChildren(...shown.map((curve) => make("tr", {},
    make("th", { scope: "row" }, curve.name),
    ...differing.map((key) => make("td", {}, curve.configText(key))),
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
