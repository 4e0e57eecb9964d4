// Numbers as text.

export const NONE = "–";
export const BYTES = [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]];
export const SECONDS = [["s", 1], ["min", 60], ["h", 3600], ["d", 86400]];

export const tenth = (pixels) => Math.round(10 * pixels) / 10;
export const trim = (value, digits) => String(Number(value.toPrecision(digits)));
export const grouped = (value, digits = 0) =>
  value.toLocaleString("en", { maximumFractionDigits: digits });

export function figureText(value, isFraction) {
  if (isFraction) return value.toFixed(4);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : value.toPrecision(4);
}

export function amountText(value) {
  if (value === null) return NONE;
  if (value >= 1000) return grouped(value);
  return value >= 100 ? value.toFixed(1) : value === 0 ? "0" : value.toPrecision(3);
}

// A config's value.
export function valueText(value) {
  return value === undefined || value === null ? NONE : value === "" ? '""' : String(value);
}

// The largest unit of which there are at least `least`.
export const unitOf = (value, units, least = 1) =>
  units.findLast(([, size]) => value >= least * size) ?? units[0];

export function withUnit(value, units) {
  if (value === 0) return "0";
  const [unit, size] = unitOf(value, units);
  return `${value / size >= 1000 ? grouped(value / size) : trim(value / size, 3)} ${unit}`;
}

export function powerText(value) {
  const [digits, exponent] = value.toExponential(3).split("e").map(Number);
  const raised = [...String(exponent)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  return digits === 1 ? `10${raised}` : `${digits}·10${raised}`;
}

export function plainText(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return powerText(value);
  return size >= 1e4 ? grouped(value) : trim(value, 10);
}
