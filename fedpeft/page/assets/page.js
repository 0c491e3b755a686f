"use strict";

// Tooltips: the nearest mark within reach shows its text.
const REACH = 16; // pixels
const tip = document.getElementById("tip");

function nearest(svg, x, y) {
  let closest = null, least = REACH;
  for (const mark of svg.querySelectorAll("[data-tip]")) {
    const box = mark.getBoundingClientRect();
    if (!box.width) continue; // hidden
    const distance = Math.hypot(box.x + box.width / 2 - x, box.y + box.height / 2 - y);
    if (distance < least) [closest, least] = [mark, distance];
  }
  return closest;
}

// Show a text beside a box on the screen; without a text, hide the tooltip.
function showTip(text, box) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const size = tip.getBoundingClientRect();
  const left = Math.min(box.right + 8, innerWidth - size.width - 8);
  const top = box.top - size.height - 8;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${top < 8 ? box.bottom + 8 : top}px`;
}

function tooltips(svg) {
  const follow = (event) => {
    const mark = nearest(svg, event.clientX, event.clientY);
    showTip(mark?.dataset.tip, mark?.getBoundingClientRect());
  };
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  svg.addEventListener("pointerleave", () => showTip(""));
}

// Legend: an entry shows or hides its series in all figures.
function legendEntry(button) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const part of document.querySelectorAll(`[data-series="${button.dataset.legend}"]`))
      part.classList.toggle("off", !shown);
  });
}

// Tables: a click on a heading sorts, a second click reverses; cells without a number come last.
function compareCells(one, other) {
  const [a, b] = [one, other].map((cell) => cell.dataset.value);
  if (a !== undefined && b !== undefined) return Number(a) - Number(b);
  return one.textContent.localeCompare(other.textContent, undefined, { numeric: true });
}

function sortBy(heading) {
  const table = heading.closest("table"), body = table.tBodies[0], column = heading.cellIndex;
  const up = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  const numbers = heading.classList.contains("number");
  const rows = [...body.rows].map((row) => ({ row, cell: row.cells[column] }));
  rows.sort((one, other) => {
    const [a, b] = [one, other].map(({ cell }) => numbers && cell.dataset.value === undefined);
    if (a || b) return a - b;
    return (up ? 1 : -1) * compareCells(one.cell, other.cell);
  });
  body.append(...rows.map(({ row }) => row));
}

function sortable(table) {
  for (const button of table.querySelectorAll("th button"))
    button.addEventListener("click", () => sortBy(button.closest("th")));
}

document.querySelectorAll("figure svg").forEach(tooltips);
document.querySelectorAll("[data-legend]").forEach(legendEntry);
document.querySelectorAll("table").forEach(sortable);
addEventListener("scroll", () => showTip(""), { passive: true });
