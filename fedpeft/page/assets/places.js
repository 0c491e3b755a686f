// Parts of the pages of a deployment's places: a server, and a node.
const momentText = (time) => timeText(Date.parse(time) / 1000);
const momentCell = (time) => (time ? [momentText(time), Date.parse(time)] : NONE);

// Replace what a place shows; keep the order of its table, and the focus of a button in it.
function redraw(place, ...children) {
  const sorted = place.querySelector("th[aria-sort]");
  const at = sorted?.cellIndex, up = sorted?.getAttribute("aria-sort") === "ascending";
  const focus = place.contains(document.activeElement) ? document.activeElement.id : "";
  const left = place.querySelector(".wide")?.scrollLeft ?? 0;
  place.replaceChildren(...children);
  const heading = known(at) ? place.querySelector("table")?.tHead.rows[0].cells[at] : null;
  if (heading) for (let clicks = up ? 1 : 2; clicks; clicks--) sortBy(heading);
  const box = place.querySelector(".wide");
  if (box) box.scrollLeft = left;
  if (focus) document.getElementById(focus)?.focus();
}

// Call draw(part) for each part of the data that differs from before.
function drawer(draws) {
  const before = {};
  return (data) => {
    for (const [name, draw] of Object.entries(draws)) {
      const now = JSON.stringify(data[name]);
      if (before[name] !== now) draw(data[name], data);
      before[name] = now;
    }
  };
}

function facts(entries) {
  return entries.map(([name, value, note]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, el("strong", {}, value), el("span", { class: "soft" }, note ?? ""))));
}

function childrenTable(children) {
  const columns = [{ title: "process" }, { title: "state" }, { title: "pid", number: true }, { title: "restarts", number: true }];
  const rows = children.map(({ name, pid, answers = true, restarts }) => [name, badge(!pid ? "down" : answers ? "up" : "no answer"), numberCell(pid, String), numberCell(restarts, countText)]);
  return table(columns, rows, "processes");
}
