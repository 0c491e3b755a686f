// One study: its cells and trials as they begin and end.
function studyView(main, data) {
  const { study } = data;
  const axes = study.axes.map((axis) => ({ title: axis, cell: (row) => row.labels[axis] ?? NONE }));
  const { score, metric, round, epsilon, sent, changed } = MEASURES;
  const columns = [...axes, score, metric, round, epsilon, sent, changed];
  const kinds = { cell: new RunTable(columns, "cells"), trial: new RunTable(columns, "trials of the search") };
  const bar = el("progress", { "aria-label": "finished cells", max: Math.max(1, study.size), value: 0 });
  const counts = el("p", { role: "status" });
  const figures = el("div", { class: "figures" });
  const failed = el("ul");
  const failures = section("failed", "Failed", failed);
  const trials = section("trials", "Trials of the search", kinds.trial.element);
  const charts = new Map();
  const others = el("p", { class: "soft" });
  const legend = el("nav", { hidden: true, class: "legend", "aria-label": "Series: click to hide or show in all figures" });
  const series = new Map(); // label -> number
  main.replaceChildren(
    ...(study.about ?? "").split("\n\n").filter((text) => text.trim()).map((text) => el("p", {}, text)),
    ...(study.problem ? [el("p", { class: "problem", role: "alert" }, study.problem)] : []),
    counts, bar, others, legend,
    section("scores", "Score against bytes",
      el("p", { class: "soft" }, "Final score of each finished cell against the payload that a client sent up in the whole run. The study's report has means over seeds, convergence and tests of significance: ",
        el("code", {}, "fedpeft report")),
      figures),
    section("cells", "Cells", kinds.cell.element), trials, failures);

  const labelOf = (row, left) => Object.entries(row.labels)
    .filter(([axis]) => !left.includes(axis)).map(([, label]) => label).join(" · ");

  function drawScores() {
    const rows = [...kinds.cell.rows.values()].map(({ row }) => row).filter((row) => known(row.score) && known(row.sent) && row.state === "finished");
    const panels = new Map();
    for (const row of rows) {
      const task = row.labels.task ?? row.labels["task.name"] ?? row.task;
      if (!panels.has(task)) panels.set(task, []);
      panels.get(task).push(row);
    }
    for (const [task, members] of panels) {
      if (!charts.has(task)) {
        charts.set(task, new Chart(`scores-${charts.size}`, task));
        figures.append(charts.get(task).element);
      }
      const groups = new Map();
      for (const row of members) {
        const label = labelOf(row, ["seed", "task", "task.name"]) || row.method;
        if (!series.has(label)) addSeries(label);
        if (!groups.has(label)) groups.set(label, []);
        groups.get(label).push(row);
      }
      const drawn = [...groups].map(([label, of]) => ({
        number: series.get(label), label, points: true,
        x: of.map((row) => Math.log10(Math.max(1, row.sent))), y: of.map((row) => row.score),
      }));
      const logBytes = (value) => shortBytes(10 ** value);
      const x = { label: "payload a client sent up (log)", short: logBytes, long: logBytes };
      const [low, high] = rangeOf(drawn.flatMap((one) => one.x));
      [x.low, x.high] = high - low < 0.2 ? [low - 0.5, high + 0.5] : [low - 0.1, high + 0.1];
      if (x.high - x.low > 3) x.ticks = ticks(Math.ceil(x.low), x.high, 5, true);
      charts.get(task).draw(x, { label: members[0].metric, short: shortText, long: scoreText }, drawn, hidden(legend));
    }
  }

  function addSeries(label) {
    series.set(label, series.size);
    legend.append(legendButton(series.get(label), label));
    legend.hidden = false;
  }

  function drawCounts() {
    const rows = [...kinds.cell.rows.values()].map(({ row }) => row);
    const states = new Map();
    for (const row of rows) states.set(row.state, (states.get(row.state) ?? 0) + 1);
    const finished = states.get("finished") ?? 0;
    const text = [...states].map(([state, count]) => `${countText(count)} ${state}`).join(", ");
    counts.textContent = `${countText(finished)} of ${countText(study.size)} cells finished${text ? ` (${text})` : ""}`;
    bar.value = finished;
    if (study.others) others.textContent = `${countText(study.others)} runs in the folder are of an earlier form of the study and are not shown.`;
    const wrong = [...kinds.cell.rows.values(), ...kinds.trial.rows.values()].map(({ row }) => row)
      .filter((row) => row.reason);
    failed.replaceChildren(...wrong.map((row) => el("li", {}, el("code", {}, row.name), `: ${row.reason}`)));
    failures.hidden = !wrong.length;
    trials.hidden = !kinds.trial.rows.size;
  }

  function apply(change) {
    for (const [kind, list] of Object.entries(kinds)) {
      if (change.whole) list.clear();
      list.remove(change.gone ?? []);
      const rows = change.rows.filter((row) => row.kind === kind);
      list.put(rows.map((row) => ({ ...row, short: labelOf(row, []) })));
    }
    drawCounts();
    drawScores();
  }

  apply(data);
  return apply;
}
