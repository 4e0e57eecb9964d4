// What the reader has chosen, in the part of the page's address after #: it survives a reload, and can be sent to others.

// Return what the address says; nothing of it is trusted.
export function readAddress() {
  return new URLSearchParams(location.hash.slice(1));
}

export function writeAddress(chosen, selection, filter) {
  const said = new URLSearchParams();
  if (chosen.figure) said.set("metric", chosen.figure);
  said.set("x", chosen.axis);
  if (chosen.logX) said.set("log-x", "1");
  said.set("log-y", chosen.logY ? "1" : "0");
  if (!chosen.average) said.set("average", "0");
  if (chosen.judged) {
    said.set("judged", chosen.judged);
    said.set("target", String(chosen.targets[chosen.judged]));
  }
  said.set("sort", (chosen.descending ? "-" : "") + chosen.sort);
  if (filter) said.set("filter", filter);
  const hidden = selection.runs.filter((run) => selection.off.has(run));
  const shown = selection.runs.filter((run) => !selection.off.has(run));
  if (hidden.length <= shown.length) for (const run of hidden) said.append("hide", run.name);
  else if (!shown.length) said.append("show", "");
  else for (const run of shown) said.append("show", run.name);
  try {
    history.replaceState(null, "", `#${said}`);
  } catch { /* a browser that allows no such change: nothing is kept */ }
}

// Switch runs on and off as an address says; return whether it says anything.
export function applySelection(said, selection) {
  const [show, hide] = [said.getAll("show"), said.getAll("hide")];
  for (const run of selection.runs)
    if (show.length ? !show.includes(run.name) : hide.includes(run.name)) selection.off.add(run);
  return [...said].length > 0;
}
