// The axes of the chart: what lies along x, scales, and ticks with their texts.
import { BYTES, SECONDS, plainText, powerText, unitOf } from "./texts.js";

export const AXES = {
  rounds: { name: "Rounds", metric: "round", of: (run) => run.column("round") },
  uplink: {
    name: "Uplink", metric: "uplink_bytes", units: BYTES,
    of: (run) => run.total("uplink_bytes"),
  },
  total: {
    name: "Up + down", metric: "total_bytes", units: BYTES,
    of: (run) => run.total("total_bytes"),
  },
  simulated: {
    name: "Simulated time", metric: "simulated_seconds", units: SECONDS,
    of: (run) => run.total("simulated_seconds"),
  },
  wall: {
    name: "Wall time", metric: "wall_seconds", units: SECONDS,
    of: (run) => run.total("wall_seconds"),
  },
};

export function makeScale(low, high, from, to, log) {
  const f = log ? Math.log10 : Number;
  const factor = (to - from) / (f(high) - f(low));
  return (value) => from + (f(value) - f(low)) * factor;
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((digit) => digit * power >= 0.8 * rough) ?? 10);
}

// The unit in which an axis that is not logarithmic counts.
export const unitOfAxis = (high, units) => unitOf(high, units, units === SECONDS ? 3 : 1);

export function linearTicks(low, high, count, units, whole) {
  const size = units ? unitOfAxis(high, units)[1] : 1;
  const step = Math.max(niceStep((high - low) / size / count), whole ? 1 : 0);
  const ticks = [];
  for (let k = Math.ceil(low / size / step - 1e-9); k * step <= high / size + 1e-9 * step; k += 1)
    ticks.push(Number((k * step).toPrecision(12)) * size);
  return ticks;
}

export function logTicks(low, high, count, units) {
  const tens = (size, digits) => {
    const values = [];
    for (let k = Math.floor(Math.log10(low / size)); k <= Math.log10(high / size); k += 1)
      for (const digit of digits) values.push(Number(`${digit}e${k}`) * size);
    return values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  };
  // 1 s, 10 s, 1 min, 10 min, 1 h, ...: each unit up to where the next begins.
  const seconds = (digits) => SECONDS.flatMap(([, size], index) => {
    const end = SECONDS[index + 1]?.[1] ?? Infinity;
    return tens(size, digits).filter((value) => (index === 0 || value >= size) && value < end);
  });
  const values = (digits) => (units === SECONDS ? seconds(digits) : tens(1, digits));
  const [fine, coarse] = [values([1, 2, 5]), values([1])];
  if (fine.length < 2) return linearTicks(low, high, count, units, false);
  if (fine.length <= count) return fine;
  if (coarse.length < 2) return fine.filter((_, k) => k % 2 === 0);
  return coarse.filter((_, k) => k % Math.ceil(coarse.length / count) === 0);
}

// Ticks as text, all with as many decimals.
export function tickTexts(values, log) {
  const texts = values.map(plainText);
  if (texts.some((text) => /[⁰¹²³⁴⁵⁶⁷⁸⁹]/.test(text))) return log ? values.map(powerText) : texts;
  if (log) return texts;
  const decimals = Math.max(...texts.map((text) => text.split(".")[1]?.length ?? 0));
  return decimals ? values.map((value) => value.toFixed(decimals)) : texts;
}

export function unitTexts(values, units, unit) {
  return values.map((value) => {
    if (value === 0) return "0";
    const [name, size] = unit ?? unitOf(value * 1.0001, units);
    return `${plainText(Number((value / size).toPrecision(10)))} ${name}`;
  });
}
