// The page as `fedapp report --serve` gives it: it asks for new data, and draws them where the old ones were.
import { at } from "./elements.js";
import { openPage } from "./main.js";

const EVERY = 2000; // milliseconds between two questions

// Whether these are the data that the page came with.
const isInPage = (data) => JSON.stringify(data) === JSON.stringify(JSON.parse(at("data").textContent));

function follow(refresh) {
  let tag = ""; // of the data that are shown
  const say = (text) => { at("live").hidden = false; at("live").textContent = text; };

  async function ask() {
    const answer = await fetch("data", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (!answer.ok && answer.status !== 304) throw new Error(answer.statusText);
    say("· live");
    // While the reader points at something, it stays where it is.
    if (answer.status === 304 || document.querySelector("#chart:hover, select:focus")) return;
    const data = await answer.json();
    if (tag || !isInPage(data)) refresh(data);
    tag = answer.headers.get("ETag");
  }

  async function again() {
    if (!document.hidden) await ask().catch(() => say("· not connected: fedapp report has ended"));
    setTimeout(again, EVERY);
  }
  again();
}

follow(openPage());
