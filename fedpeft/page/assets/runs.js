// One run, or several compared: figures, results, failures, privacy and settings.
const BEHIND = 5; // rounds whose mean duration predicts the time left
const LEAST_ROUNDS = 16; // on the axis of a live run

// Sums of a column: what was sent, or how long it took, up to each round.
function sums(values) {
  let sum = 0;
  return values.map((value) => (sum += value ?? 0));
}

const AGAINST = {
  rounds: { label: "round", of: (run) => run.columns.round, short: shortText, long: (value) => `round ${countText(value)}`, whole: true },
  bytes: {
    label: "messages of training, up + down, all clients",
    of: (run) => sums(run.columns.up.map((up, at) => up + run.columns.down[at])),
    short: shortBytes, long: (value) => `${bytesText(value)} sent so far`,
  },
  time: { label: "time", of: (run) => sums(run.columns.seconds), short: secondsText, long: (value) => `after ${secondsText(value)}` },
  "virtual time": { label: "virtual time", of: (run) => run.columns.virtual, short: secondsText, long: (value) => `after ${secondsText(value)} of virtual time` },
};

function legendButton(number, label) {
  const button = el("button", { type: "button", "aria-pressed": "true", "data-legend": number }, swatch(number), el("span", {}, label));
  legendEntry(button);
  return button;
}

// The numbers of the series that the legend hides.
const hidden = (legend) => new Set([...legend.querySelectorAll('[aria-pressed="false"]')].map((button) => Number(button.dataset.legend)));

function progressOf(run) {
  const done = run.columns.round.at(-1) ?? 0, total = run.head.rounds ?? run.head.result?.rounds ?? done;
  const recent = run.columns.seconds.slice(-BEHIND);
  const mean = recent.reduce((sum, value) => sum + value, 0) / Math.max(1, recent.length);
  const { phase, round, done: part, total: parts } = run.progress ?? {};
  const now = run.head.state === "running" && round > done ? `; round ${countText(round)}: ${phase} ${part} of ${parts}` : "";
  const left = run.head.state === "running" && done && done < total ? `; ${secondsText((total - done) * mean)} left` : "";
  return { done, total, text: `${countText(done)} of ${countText(total)} rounds${now}${left}` };
}

function factsOf(run) {
  const { columns, head } = run, result = head.result, last = (values) => values.findLast(known) ?? null;
  const total = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
  const best = rangeOf(columns.score)[1];
  return {
    score: result ? result.score : last(columns.score),
    best: columns.score.some(known) ? best : null,
    loss: last(columns.loss),
    epsilon: last(columns.epsilon),
    up: result ? result.bytes.up.message : total(columns.up),
    down: result ? result.bytes.down.message : total(columns.down),
    seconds: result ? result.seconds : total(columns.seconds),
    failed: total(columns.failed),
    late: total(columns.late),
    sent: result?.bytes.per_client_round_up.payload ?? null,
    size: result?.vector_size ?? null,
    head: result?.head_size ?? null,
  };
}

function runsView(main, data) {
  const runs = data.runs, several = runs.length > 1, first = runs[0];
  const states = el("div", { class: "states" });
  const problems = el("div");
  const facts = el("dl", { class: "facts" });
  const legend = el("nav", { class: "legend", "aria-label": "Runs: click to hide or show in all figures", hidden: !several });
  if (several) legend.append(...runs.map((run, number) => legendButton(number, run.name)));
  const against = axisChoice(runs, () => drawCharts());
  const charts = chartsOf(runs);
  const partitions = runs.filter((run) => run.head.partition).slice(0, 4).map(partitionFigure);
  const results = el("div"), failures = el("div"), rounds = el("div");
  const privacy = el("div"), settings = settingsPart(runs), use = el("div");
  main.replaceChildren(
    states, problems, several ? "" : facts, legend,
    section("curves", several ? "Comparison" : "Rounds", against.element,
      el("div", { class: "figures" }, ...charts.map(({ chart }) => chart.element), ...partitions)),
    several ? section("results", "Results", results) : "",
    section("failures", "Clients that failed", failures),
    section("privacy", "Privacy", privacy),
    settings,
    section("repeat", "Repeat and use", use),
    several ? "" : rounds);

  function drawStates() {
    states.replaceChildren(...runs.map((run) => {
      const { done, total, text } = progressOf(run);
      const bar = el("progress", { max: Math.max(1, total), value: done, "aria-label": `rounds of ${run.name}` });
      return el("div", { class: "state" }, badge(run.head.state), bar, el("span", {}, several ? `${run.name}: ${text}` : text));
    }));
    const name = data.title, { done, total } = progressOf(first);
    if (data.live && !several) document.title = first.head.state === "running" ? `${Math.floor((100 * done) / Math.max(1, total))} % ${name}` : name;
    const lines = runs.flatMap((run) => [...run.head.problems, ...run.damaged].map((line) => (several ? `${run.name}: ${line}` : line)));
    const notes = runs.flatMap((run) => run.head.notes.map((line) => (several ? `${run.name}: ${line}` : line)));
    const remarks = runs.flatMap((run) => run.head.remarks.map((line) => (several ? `${run.name}: ${line}` : line)));
    problems.replaceChildren(
      ...problemList(lines),
      ...(remarks.length ? [el("ul", { class: "soft" }, ...remarks.map((line) => el("li", {}, line)))] : []),
      ...(notes.length ? [el("details", {}, el("summary", {}, `${notes.length} notes on nodes`), el("ul", {}, ...notes.map((line) => el("li", {}, line))))] : []));
  }

  function drawFacts() {
    const of = factsOf(first), { head } = first;
    const entries = [
      [head.metric, scoreText(of.score), [known(of.best) ? `best ${scoreText(of.best)}` : "", known(head.start) ? `from ${scoreText(head.start)} before training` : ""].filter(Boolean).join(", ")],
      ...(head.frozen ?? []).map(({ name, score }) => ["frozen backbone", scoreText(score), `${name}, all data in one place`]),
      head.private ? ["epsilon", first.columns.round.length ? epsilonText(of.epsilon) : NONE, "spent so far, of one run"]
        : ["training loss", scoreText(of.loss), "mean of the last round"],
      ["sent up", bytesText(of.up), "messages of training, all clients"],
      ["sent down", bytesText(of.down), "messages of training, all clients"],
      ...(head.result?.bytes.start ? [["sums sent up", bytesText(head.result.bytes.start.up.message), "before the first round, all clients"]] : []),
      ["a client sent", known(of.sent) ? bytesText(of.sent) : NONE, "numbers, each round"],
      ["trained numbers", known(of.size) ? countText(of.size) : NONE, known(of.head) ? `${countText(of.head)} of them the head` : ""],
      ["clients", known(head.clients) ? countText(head.clients) : NONE, `${countText(of.failed)} failures, ${countText(of.late)} late replies`],
      ["duration", secondsText(of.seconds), "all rounds"],
    ];
    facts.replaceChildren(...entries.map(([name, value, note]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, el("strong", {}, value), el("span", { class: "soft" }, note)))));
  }

  function drawCharts() {
    const off = hidden(legend), choice = AGAINST[against.value()];
    const x = { ...choice };
    if (data.live) x.high = Math.max(...runs.map((run) => endOf(run, choice)));
    if (choice.whole) x.low = 1;
    const positions = runs.map((run) => choice.of(run));
    for (const { chart, y, series, flat } of charts) {
      chart.element.hidden = flat?.() ?? false;
      const drawn = runs.flatMap((run, number) => series(run).map((one) => ({
        number, label: run.name, x: positions[number], ...one,
      })));
      chart.draw(x, typeof y === "function" ? y(runs) : y, drawn, off);
    }
  }

  function drawTables() {
    if (several) results.replaceChildren(resultsTable(runs));
    failures.replaceChildren(...failureTables(runs, several));
    if (!several) rounds.replaceChildren(roundsPart(first));
  }

  function drawWords() {
    const each = (list) => runs.map((run) => el("div", {}, ...(several ? [el("h3", {}, run.name)] : []), ...list(run)));
    privacy.replaceChildren(...each((run) => (run.head.privacy.length ? run.head.privacy
      : ["The statement of what this run promises is written at its end."]).map((line) => el("p", {}, line))));
    use.replaceChildren(...each((run) => [run.head.repeat, run.head.use].flatMap(({ about, commands }) => [
      el("p", {}, about), ...(commands.length ? [el("pre", { tabindex: "0" }, commands.join("\n"))] : [])]).concat(digests(run))));
  }

  function drawAll(heads) {
    drawStates();
    if (!several) drawFacts();
    drawCharts();
    drawTables();
    if (heads) drawWords();
  }

  drawAll(true);
  return (change) => {
    for (const part of change.runs) {
      const run = runs.find(({ name }) => name === part.name);
      for (const [name, values] of Object.entries(part.columns)) {
        run.columns[name].length = Math.min(part.from, run.columns[name].length);
        for (const value of values) run.columns[name].push(value);
      }
      for (const key of ["failures", "damaged", "progress"]) run[key] = part[key];
      if (part.head) run.head = part.head;
    }
    const moved = change.runs.some((part) => part.head || part.columns.round.length || part.from < runs.find(({ name }) => name === part.name).columns.round.length);
    if (moved) drawAll(change.runs.some((part) => part.head));
    else drawStates();
  };
}

// Where the axis ends: that of a live run grows only when its rounds have doubled, so that the
// curves seldom move, and the first rounds of a long run are still seen.
function endOf(run, choice) {
  const { done, total } = progressOf(run), last = choice.of(run).at(-1) ?? 1;
  const running = run.head.state === "running";
  const end = running ? Math.min(total, Math.max(LEAST_ROUNDS, 2 ** Math.ceil(Math.log2(done + 1)))) : total;
  if (choice.whole) return Math.max(end, 2);
  return running && done ? (last * end) / done : last;
}

function axisChoice(runs, changed) {
  const names = Object.keys(AGAINST).filter((name) => name !== "virtual time" || runs.every((run) => run.columns.virtual.some(known)));
  const set = el("fieldset", { class: "axis-choice" }, el("legend", {}, "Against"), ...names.map((name, at) => el("label", {},
    el("input", { type: "radio", name: "against", value: name, checked: at === 0 }), name)));
  set.addEventListener("change", changed);
  return { element: set, value: () => set.querySelector(":checked").value };
}

function chartsOf(runs) {
  const several = runs.length > 1, { private: isPrivate } = runs[0].head;
  const metrics = [...new Set(runs.map((run) => run.head.metric))];
  const plain = { short: shortText, long: scoreText };
  const count = { short: shortText, long: countText, whole: true, zero: true };
  const column = (name) => (run) => [{ y: run.columns[name] }];
  const ways = (run) => [{ y: sums(run.columns.up), label: `${several ? `${run.name}, ` : ""}up`, dash: 0 },
    { y: sums(run.columns.down), label: `${several ? `${run.name}, ` : ""}down`, dash: 1, number: several ? undefined : 1 }]
    .map(({ number, ...one }) => (number === undefined ? one : { ...one, number }));
  const clients = (run) => ["clients", "failed", "late"].map((name, number) => ({
    y: run.columns[name], number, dash: number, label: name === "clients" ? "succeeded" : name }));
  const charts = [
    { chart: new Chart("score", metrics.length === 1 ? `Score: ${metrics[0]}` : "Score"),
      y: (all) => ({ ...plain, label: all.length === 1 ? all[0].head.metric : "score" }), series: column("score") },
    { chart: new Chart("loss", "Training loss"), y: { ...plain, label: "mean training loss" }, series: column("loss"),
      unless: runs.every((run) => run.head.private) },
    { chart: new Chart("epsilon", "Privacy spent"), y: { label: "epsilon", short: shortText, long: epsilonText, zero: true }, series: column("epsilon"),
      unless: !runs.some((run) => run.head.private) },
    { chart: new Chart("traffic", several ? "Traffic: up, and down (dashed)" : "Traffic"),
      y: { label: "messages of training so far", short: shortBytes, long: bytesText, zero: true }, series: ways },
    { chart: new Chart("clients", several ? "Failed clients" : "Clients of a round"), y: { ...count, label: several ? "failed clients" : "clients" },
      series: several ? column("failed") : clients, flat: () => runs.every((run) => steady(run, several)) },
  ];
  for (const { chart, series } of charts.slice(-2))
    if (!several) chart.element.append(el("figcaption", {}, ...series(runs[0]).map((one) =>
      el("span", { class: "class" }, swatch(one.number ?? 0), one.label))));
  return charts.filter(({ unless }) => !unless);
}

// Whether there is nothing to see in the numbers of a run's clients.
function steady({ columns: { clients, failed, late } }, several) {
  return failed.every((count) => !count) && (several || (late.every((count) => !count) && new Set(clients).size < 2));
}

function partitionFigure(run, at) {
  const { clients, labels, bars, names, sorted, median } = run.head.partition;
  const figure = new Bars(`partition-${at}`, `Data of each client${at || data.runs.length > 1 ? `: ${run.name}` : ""}`);
  const label = sorted ? `${countText(clients)} clients, sorted by size` : "client";
  figure.draw(labels, bars, { label }, { label: "training examples" }, sorted ? -1 : bars.length, names);
  const listed = names.length && !sorted && names.length <= 20 ? ` Clients: ${names.map((name, at) => `${at} ${name}`).join(", ")}.` : "";
  figure.element.append(el("p", { class: "soft" }, `Median: ${countText(median)} examples.${listed}`));
  return figure.element;
}
