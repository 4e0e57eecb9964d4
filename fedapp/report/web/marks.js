// What tells at the end of a curve, and in the table, that a run is not complete.
import { shape } from "./elements.js";

// A ring: running. Two bars: interrupted. A cross: diverged, or failed in another way.
export function stateMark(state, x, y) {
  const r = 4;
  const lines = (d) => shape("path", { class: "mark", d });
  const mark = state === "running" ? shape("circle", { class: "mark", cx: x, cy: y, r })
    : state === "interrupted" ? lines(`M${x - 2.5},${y - r}v${2 * r}M${x + 2.5},${y - r}v${2 * r}`)
    : lines(`M${x - r},${y - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}`);
  mark.setAttribute("data-state", state);
  return mark;
}
