// Light and dark colours: the system's, until the reader chooses.
import { at } from "./elements.js";

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").textContent = theme === "dark" ? "Light" : "Dark";
  at("theme").setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
}

export function followTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try { kept = localStorage.getItem("fedapp-theme"); } catch { /* a page from disk may have none */ }
  let own = ["light", "dark"].includes(kept) ? kept : null;
  setTheme(own ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { if (!own) setTheme(dark.matches ? "dark" : "light"); });
  at("theme").addEventListener("click", () => {
    own = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(own);
    try { localStorage.setItem("fedapp-theme", own); } catch { /* then it is not kept */ }
  });
}
