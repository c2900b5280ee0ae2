// Keeps the page as the server has it: every two seconds its [data-live] parts are read anew,
// unless somebody has selected something. Without this file the page works by reloads.
"use strict";

const EVERY = 2000;
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

async function look() {
  if (picked() || String(getSelection())) return say("paused", "Paused while something is selected");
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(10000) });
    const text = await answer.text();
    if (answer.status === 401) return location.reload();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (!answer.ok) throw new Error(fresh.querySelector("h1")?.textContent || "No answer");
    if (picked()) return; // while it was on its way
    document.title = fresh.title;
    for (const part of parts()) replace(part, fresh.getElementById(part.id));
    say("live", "Live");
    count();
  } catch (error) {
    say("lost", error.name === "Error" ? error.message : "No answer");
  }
}

async function watch() {
  if (!document.hidden) await look();
  setTimeout(watch, EVERY);
}

document.addEventListener("change", ({ target }) => {
  if (target.matches("[data-all]"))
    for (const box of document.querySelectorAll("input[name=id]")) box.checked = target.checked;
  count();
});

// A reload after a change reads the page, and does not send the form once more.
history.replaceState(null, "", location.href);
count();
if (parts().length) {
  say("live", "Live");
  setTimeout(watch, EVERY);
}
