// Parts that several views share: tables, states, and lists of runs.
const PORTION = 100; // rows that are added to a list at a time
const ONE_LINE = 24; // characters of a heading that is not wrapped

// columns: [{title, number?, optional?}]; a cell is a text, an element, or [text, number to sort by].
// An optional column is left out where no row has anything in it.
function table(given, all, label) {
  const kept = (values) => values.filter((_, at) => !given[at].optional || !all.length || all.some((row) => row[at] !== NONE));
  const columns = kept(given), rows = all.map(kept);
  const heads = columns.map(({ title, number, hidden, optional }) =>
    el("th", { scope: "col", class: `${number ? "number" : ""} ${title.length > ONE_LINE ? "" : "short"} ${optional ? "optional" : ""}`.trim() },
      hidden ? el("span", { class: "hidden" }, title) : el("button", { type: "button" }, title)));
  const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, at) => fill(el("td"), cell, columns[at])))));
  const made = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, ...heads)), body);
  sortable(made);
  // Its own name: a section may have the table's, and no two landmarks of a page may share one.
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `table of ${label}` }, made);
}

function fill(cell, value, column) {
  const [content, key] = Array.isArray(value) ? value : [value, undefined];
  const short = typeof content === "string" ? content.length < 30 : content.matches(".badge, .action");
  const link = typeof content !== "string" && content.matches("a");
  cell.className = `${column.number ? "number" : short ? "short" : link ? "name" : ""} ${column.optional ? "optional" : ""}`.trim();
  if (known(key)) cell.dataset.value = key;
  else delete cell.dataset.value;
  if (typeof content === "string") {
    if (cell.textContent !== content || cell.firstElementChild) cell.textContent = content;
  } else cell.replaceChildren(content);
  return cell;
}

// On the <ul> itself role="alert" would replace its role as a list, and its entries would be in none.
function problemList(lines) {
  const entries = lines.map((line) => el("li", {}, line));
  return lines.length ? [el("div", { role: "alert" }, el("ul", { class: "problem" }, ...entries))] : [];
}

const numberCell = (value, text) => (known(value) ? [text(value), value] : NONE);

// A word and a sign for each state: never color alone.
const SIGNS = {
  starting: "…", finished: "✓", running: "▶", unfinished: "⏸", stopped: "■", failed: "✗", damaged: "⚠", waiting: "…",
  online: "●", away: "○", "never seen": "○", up: "✓", down: "✗",
};

function badge(state) {
  const sign = el("span", { "aria-hidden": "true" }, `${SIGNS[state] ?? "?"} `);
  return el("span", { class: `badge ${state.replaceAll(" ", "-")}` }, sign, state);
}

const addressOf = (view, names) =>
  `${view}?${names.map((name) => `name=${encodeURIComponent(name)}`).join("&")}`;

function section(name, title, ...children) {
  return el("section", { "aria-labelledby": name }, el("h2", { id: name }, title), ...children);
}

// A table of runs that changes in place, with boxes to choose runs for a comparison.
class RunTable {
  // columns: [{title, number?, cell(row)}]
  constructor(columns, label) {
    this.columns = [{ title: "compare", hidden: true }, { title: "run" }, { title: "state" }, ...columns];
    this.rows = new Map(); // name -> {row, line}
    this.waiting = new Map(); // name -> row that has no line yet
    this.chosen = new Set();
    const box = table(this.columns, [], label);
    this.body = box.querySelector("tbody");
    this.filter = el("input", { type: "search", id: `filter-${label}`, autocomplete: "off" });
    this.filter.addEventListener("input", () => this._filter());
    this.button = el("button", { type: "button", class: "action", disabled: true }, "Compare");
    this.button.addEventListener("click", () => { location.href = addressOf("runs", [...this.chosen]); });
    this.note = el("span", { class: "soft", role: "status" });
    this.element = el("div", {},
      el("div", { class: "tools" },
        el("label", { for: this.filter.id }, "Filter"), this.filter, this.button, this.note),
      box);
    this._note();
  }

  // Many new rows are added in portions, so that the first are seen at once.
  put(rows) {
    this._put(rows.filter(({ name }) => this.rows.has(name)));
    const above = this.rows.size > 0;
    for (const row of rows) if (!this.rows.has(row.name)) this.waiting.set(row.name, row);
    this._portion(above);
  }

  _portion(above) {
    const rows = [...this.waiting.values()].slice(0, PORTION);
    for (const { name } of rows) this.waiting.delete(name);
    this._put(rows, above);
    if (this.waiting.size) setTimeout(() => this._portion(above));
  }

  _put(rows, above) {
    const fresh = document.createDocumentFragment();
    for (const row of rows) {
      const there = this.rows.get(row.name);
      const line = there?.line ?? this._line(row);
      this._fill(line, row);
      this.rows.set(row.name, { row, line });
      if (!there) fresh.append(line);
    }
    this.body[above ? "prepend" : "append"](fresh);
    const bare = [...this.rows.values()].every(({ row }) => this.columns.every(({ optional, cell }) => !optional || cell(row) === NONE));
    this.body.parentElement.classList.toggle("bare", bare);
    this._filter();
  }

  remove(names) {
    for (const name of names) {
      this.rows.get(name)?.line.remove();
      this.rows.delete(name);
      this.waiting.delete(name);
      this.chosen.delete(name);
    }
    this._filter();
  }

  clear() {
    this.remove([...this.rows.keys(), ...this.waiting.keys()]);
  }

  _line(row) {
    const box = el("input", { type: "checkbox", "aria-label": `compare ${row.name}` });
    box.addEventListener("change", () => {
      this.chosen[box.checked ? "add" : "delete"](row.name);
      this._note();
    });
    const link = el("a", { href: addressOf("runs", [row.name]) }, row.short ?? row.name);
    const cells = [el("td", { class: "short" }, box), el("td", { class: "name" }, link)];
    return el("tr", {}, ...cells, ...this.columns.slice(2).map(() => el("td", { class: "short" })));
  }

  _fill(line, row) {
    const begun = known(row.round);
    line.cells[0].firstChild.disabled = !begun;
    line.cells[1].firstChild.toggleAttribute("data-waiting", !begun);
    if (line.dataset.state !== row.state) {
      line.dataset.state = row.state;
      line.cells[2].replaceChildren(badge(row.state));
    }
    line.title = row.reason || "";
    this.columns.slice(3).forEach((column, at) => fill(line.cells[at + 3], column.cell(row), column));
  }

  _filter() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { line } of this.rows.values()) {
      const text = words.length ? line.textContent.toLowerCase() : "";
      const hidden = !words.every((word) => text.includes(word));
      if (line.hidden !== hidden) line.hidden = hidden;
      shown += !hidden;
    }
    this.count = shown;
    this._note();
  }

  _note() {
    const chosen = this.chosen.size, most = data.colours;
    this.button.disabled = chosen < 2 || chosen > most;
    const many = chosen > most ? `at most ${most} runs can be compared` : `${chosen} chosen`;
    const of = this.count === this.rows.size ? "" : `${countText(this.count ?? 0)} of `;
    this.note.textContent = `${of}${countText(this.rows.size)} runs` + (chosen ? `, ${many}` : "");
  }
}
const MEASURES = {
  task: { title: "task", cell: (row) => row.task ?? NONE },
  method: { title: "method", cell: (row) => (row.method ? `${row.method} on ${row.backbone}` : NONE) },
  score: { title: "score", number: true, cell: (row) => numberCell(row.score, scoreText) },
  metric: { title: "metric", cell: (row) => (known(row.score) ? row.metric : NONE) },
  round: {
    title: "rounds", number: true,
    cell: (row) => (known(row.round) ? [`${countText(row.round)} / ${countText(row.rounds)}`, row.round] : NONE),
  },
  clients: { title: "clients", number: true, cell: (row) => numberCell(row.clients, countText) },
  epsilon: {
    title: "epsilon", number: true, optional: true,
    cell: (row) => (row.private && row.round ? [epsilonText(row.epsilon), row.epsilon ?? Infinity] : NONE),
  },
  sent: { title: "a client sent", number: true, cell: (row) => numberCell(row.sent, bytesText) },
  changed: { title: "last change", number: true, cell: (row) => numberCell(row.changed || null, timeText) },
};
