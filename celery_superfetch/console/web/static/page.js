// Keeps the page up to date: every two seconds its [data-live] parts are read again, unless the
// visitor has selected something. While that fails, a banner says since when the data is old and why,
// and takes the place of the verdict: "All is well" must not stay over a Redis that is away.
// Without this file the page works by reloads.
"use strict";

const EVERY = 2000;
const LATE = 3000; // without an answer for so long, the data on the page counts as old
const old = document.getElementById("old");
const away = document.querySelector("[data-away]"); // this page was itself an error
let asOf = new Date(); // when the data on the page was read
const pulse = document.getElementById("pulse");
const picked = () => document.querySelectorAll("input[name=id]:checked").length;
const parts = () => document.querySelectorAll("[data-live]");

function say(state, text) {
  pulse.hidden = false;
  pulse.className = state;
  if (pulse.textContent !== text) pulse.textContent = text;
}

function count() {
  const number = picked(), label = document.querySelector("[data-count]");
  if (!label) return;
  label.textContent = number ? `${number} selected:` : "Select jobs to";
  label.parentElement.hidden = !document.querySelector("input[name=id]");
  label.parentElement.classList.toggle("ready", number > 0);
  for (const button of label.parentElement.querySelectorAll("button:not([data-any])")) button.disabled = !number;
}

function replace(part, fresh) {
  if (part.innerHTML === fresh.innerHTML) return;
  const inside = () => [...part.querySelectorAll("a, input")];
  const focus = inside().indexOf(document.activeElement);
  part.innerHTML = fresh.innerHTML;
  part.className = fresh.className;
  inside()[focus]?.focus({ preventScroll: true });
}

const time = (date) => date.toLocaleTimeString([], { hour12: false });

function span(date) {
  const seconds = Math.round((Date.now() - date) / 1000);
  return seconds < 120 ? `${seconds} s` : `${Math.floor(seconds / 60)} min`;
}

// Says that the data is old, and why; with no reason, that it is fresh again.
function mark(reason) {
  document.body.classList.toggle("is-old", Boolean(reason));
  old.hidden = !reason;
  if (!reason) return;
  document.title = `Old data · ${document.querySelector(".app").textContent}`;
  old.querySelector("h1").textContent = `This data is ${span(asOf)} old, from ${time(asOf)}`;
  old.querySelector("p").textContent = reason;
}

// Reads the page; fails with the reason that an error page gives.
async function read() {
  const answer = await fetch(location.href, { signal: AbortSignal.timeout(10000) }).catch(() => {
    throw new Error("The process of the page does not answer. Check whether superfetch web runs.");
  });
  if (answer.status === 401) location.reload();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (answer.ok) return fresh;
  const said = [...fresh.querySelectorAll("#verdict h1, #verdict .fix")].map((part) => part.textContent.trim());
  throw new Error(said.join(". ") || `The page answers with status ${answer.status}.`);
}

async function look() {
  const began = new Date();
  // A server that hangs answers nothing, and the page's own process waits for it.
  const late = away ? 0 : setTimeout(mark, LATE, `No answer for ${LATE / 1000} s. The page tries again.`);
  try {
    const fresh = await read();
    if (away) return location.reload();
    document.title = fresh.title;
    mark("");
    if (picked() || String(getSelection()))
      return say("paused", `Paused at ${time(asOf)} while something is selected. Now: ${fresh.title.split(" · ")[0]}`);
    for (const part of parts()) replace(part, fresh.getElementById(part.id));
    asOf = began;
    say("live", "Live");
    count();
  } catch (error) {
    say("lost", "Not live");
    if (!away) mark(error.message);
  } finally {
    clearTimeout(late);
  }
}

let next = 0;

async function watch() {
  clearTimeout(next);
  if (!document.hidden) await look();
  next = setTimeout(watch, EVERY);
}

// What was hidden for an hour is an hour old: it is read again as soon as it is seen.
document.addEventListener("visibilitychange", () => document.hidden || (next && watch()));

document.addEventListener("change", ({ target }) => {
  if (target.matches("[data-all]"))
    for (const box of document.querySelectorAll("input[name=id]")) box.checked = target.checked;
  count();
});

// A reload after a change reads the page, and does not send the form once more.
history.replaceState(null, "", location.href);
count();
if (parts().length || away) {
  if (!away) say("live", "Live");
  next = setTimeout(watch, EVERY);
}
