// The table of runs, which is the legend too.
import { at, make, shape } from "./elements.js";
import { stateMark } from "./marks.js";

// `onSwitch` is called after a curve is switched on or off, `onPoint` with the curve that the reader points at, or null.
export function makeTable({ chosen, selection, palette, columns, groups, onSwitch, onSort, onPoint }) {
  let rows = new Map(); // curve -> its elements, and the values that it is sorted by
  const look = (column) => (column.isText ? "" : "number");

  function buildHead() {
    const [above, heads] = at("runs").tHead.rows;
    above.append(...groups.map(({ span }) => make("th", { colspan: span, scope: "colgroup" })));
    heads.append(...columns.map((column) => {
      const button = make("button", { type: "button" }, make("span", {}, column.title));
      if (column.unit) button.append(" ", make("small", {}, column.unit));
      button.addEventListener("click", () => {
        chosen.descending = chosen.sort === column.key && !chosen.descending;
        chosen.sort = column.key;
        sort();
        onSort();
      });
      const attributes = column.isText ? {} : { class: look(column) };
      return make("th", { scope: "col", "data-column": column.key, ...attributes }, button);
    }));
  }

  function buildRow(curve) {
    const box = make("input", { type: "checkbox" });
    box.addEventListener("change", () => {
      selection.switchTo(curve, box.checked);
      onSwitch();
    });
    const line = shape("line", { x1: 1, x2: 25, y1: 5, y2: 5 });
    const swatch = shape("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, line);
    const name = make("span", curve.label === curve.name ? {} : { title: curve.name }, curve.label);
    if (curve.runs.length > 1)
      name.append(" ", make("span", { class: "tag" }, `(${curve.runs.length} runs)`));
    if (curve.note) {
      const badge = make("span", { class: `badge ${curve.state}` }, curve.note);
      if (curve.state) {
        const mark = stateMark(curve.state, 6, 6);
        badge.prepend(shape("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, mark));
      }
      name.append(" ", badge);
    }
    const label = make("label", {}, box, swatch, name);
    const cells = columns.slice(1).map((column) =>
      make("td", { "data-column": column.key, class: look(column) }));
    const row = make("tr", { "data-name": curve.name }, make("th", { scope: "row", "data-column": "name" }, label), ...cells);
    for (const event of ["pointerenter", "focusin"])
      row.addEventListener(event, () => onPoint(curve));
    for (const event of ["pointerleave", "focusout"])
      row.addEventListener(event, () => onPoint(null));
    return { row, box, line, cells, values: [] };
  }

  // After a change of what a row is.
  function build() {
    rows = new Map(selection.curves.map((curve) => [curve, buildRow(curve)]));
    at("runs").tBodies[0].replaceChildren(...[...rows.values()].map(({ row }) => row));
  }

  function write(wanted = () => true) {
    groups.forEach(({ text }, index) => {
      at("runs").tHead.rows[0].cells[index].textContent = text();
    });
    for (const [curve, { cells, values }] of rows) {
      values[0] = curve.label;
      cells.forEach((cell, index) => {
        const column = columns[index + 1];
        if (!wanted(column)) return;
        const value = (values[index + 1] = column.value(curve));
        cell.replaceChildren(column.write ? column.write(value, curve) : value);
        cell.classList.toggle("none", value === null);
        const range = column.range?.(curve);
        if (range) cell.append(make("small", {}, range));
      });
    }
  }

  function sort() {
    const index = columns.findIndex((column) => column.key === chosen.sort);
    const sign = chosen.descending ? -1 : 1;
    const order = (one, other) => {
      const [a, b] = [one.values[index], other.values[index]];
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    };
    at("runs").tBodies[0].append(...[...rows.values()].sort(order).map(({ row }) => row));
    for (const cell of at("runs").tHead.rows[1].cells) {
      if (cell.dataset.column !== chosen.sort) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", chosen.descending ? "descending" : "ascending");
    }
  }

  // After a change of what is shown.
  function mark() {
    const matching = new Set(selection.matching);
    for (const [curve, { row, box, line }] of rows) {
      const on = selection.isOn(curve);
      row.hidden = !matching.has(curve);
      row.classList.toggle("off", !on);
      box.checked = on;
      line.style.stroke = palette.ink(curve);
      line.style.strokeDasharray = palette.dashes(curve);
    }
    at("count").textContent = `${selection.shown().length} of ${selection.curves.length} shown`;
  }

  // The rows as they are sorted and filtered, with amounts in bytes and seconds.
  function content() {
    const units = { uplink: "bytes", downlink: "bytes", total: "bytes", simulated: "s", wall: "s" };
    const heads = columns.map(({ key }) => {
      const unit = units[key.replace("target-", "")];
      const what = ["best", "last"].includes(key) ? `${key} ${chosen.judged}` : key;
      return unit ? `${what} (${unit})` : what;
    });
    const order = [...at("runs").tBodies[0].rows];
    const visible = [...rows].filter(([, { row }]) => !row.hidden)
      .sort(([, a], [, b]) => order.indexOf(a.row) - order.indexOf(b.row));
    return [
      ["run", ...heads.slice(1), "runs", "note"],
      ...visible.map(([curve, { values }]) =>
        [...values, curve.runs.length, curve.note]),
    ];
  }

  buildHead();
  return {
    build,
    content,
    mark,
    sort,
    rewrite() {
      write();
      sort();
    },
    rewriteTarget() {
      write((column) => column.key.startsWith("target"));
      if (chosen.sort.startsWith("target")) sort();
    },
  };
}
