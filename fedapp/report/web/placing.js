// Places for the curves' labels: beside their ends, moved where they would cover each other, left out where there is no room.

const LINE = 15; // pixels between two labels
const FARTHEST = 8; // lines that a label is moved

// Labels are { x, y, width } with x at their left; the first ones are placed first. Return the y of each, or null.
export function placeLabels(labels, top, bottom) {
  const placed = [];
  const found = labels.map(({ x, y, width }) => {
    const isFree = (at) => at >= top && at <= bottom && !placed.some((other) =>
      Math.abs(other.y - at) < LINE && x < other.x + other.width && other.x < x + width);
    for (let k = 0; k <= FARTHEST; k += 0.5) {
      for (const at of [y + k * LINE, y - k * LINE]) {
        if (!isFree(at)) continue;
        placed.push({ x, y: at, width });
        return at;
      }
    }
    return null;
  });
  // Of labels one above the other, the highest belongs to the highest curve.
  for (const x of new Set(labels.map((label) => label.x))) {
    const column = labels.map((_, k) => k).filter((k) => labels[k].x === x && found[k] !== null);
    const heights = column.map((k) => found[k]).sort((a, b) => a - b);
    column.sort((j, k) => labels[j].y - labels[k].y).forEach((k, place) => { found[k] = heights[place]; });
  }
  return found;
}

// Return a function that says how many pixels wide a label is.
export function makeRuler() {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `600 12.5px ${getComputedStyle(document.body).fontFamily}`; // as wide as it may become
  return (text) => context.measureText(text).width;
}

// The beginning of a text that is at most `pixels` wide.
export function shortened(text, pixels, widthOf) {
  if (widthOf(text) <= pixels) return text;
  const letters = [...text];
  while (letters.length > 1 && widthOf(`${letters.join("")}…`) > pixels) letters.pop();
  return `${letters.join("")}…`;
}
