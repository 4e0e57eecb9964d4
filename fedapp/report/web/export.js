// The table as CSV and the chart as PNG, for the reader's disk.
import { at, make, shape } from "./elements.js";

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// A cell that a spreadsheet neither splits nor takes for a formula.
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function saveCsv(rows) {
  const text = rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
  save(new Blob([text], { type: "text/csv" }), "runs.csv");
}

const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap",
  "opacity", "font-family", "font-size", "font-variant-numeric", "paint-order",
];

// A copy of the chart that needs no style sheet.
function standalone(plot) {
  const copy = plot.cloneNode(true);
  const [originals, copies] = [plot, copy].map((svg) => [svg, ...svg.querySelectorAll("*")]);
  originals.forEach((element, k) => {
    const style = getComputedStyle(element);
    copies[k].setAttribute("style", STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  });
  const { width, height } = plot.viewBox.baseVal;
  const paper = shape("rect", { width, height });
  paper.style.fill = getComputedStyle(document.body).backgroundColor;
  copy.prepend(paper);
  for (const [name, value] of Object.entries({ width, height })) copy.setAttribute(name, value);
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

const SHARPNESS = 2; // pixels of the picture for each of the page

export function savePng() {
  const { text, width, height } = standalone(at("plot"));
  const image = make("img", { src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}` });
  image.addEventListener("load", () => {
    const canvas = make("canvas", { width: SHARPNESS * width, height: SHARPNESS * height });
    const context = canvas.getContext("2d");
    context.scale(SHARPNESS, SHARPNESS);
    context.drawImage(image, 0, 0, width, height);
    canvas.toBlob((blob) => save(blob, "curves.png"), "image/png");
  });
}
