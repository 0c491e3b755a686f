// Tables and details of runs: results, failures, rounds, settings and digests.
const SHOWN_ROUNDS = 100; // in the table of the last rounds

function resultsTable(runs) {
  const columns = [{ title: "run" }, { title: "state" }, { title: "task" }, { title: "method" },
    ...["score", "best", "rounds", "clients", "trained numbers", "a client sent a round", "messages up", "messages down", "epsilon", "failures", "duration"]
      .map((title) => ({ title, number: true, optional: title === "epsilon" }))];
  const rows = runs.map((run, number) => {
    const of = factsOf(run), { head } = run;
    return [el("span", { class: "class" }, swatch(number), run.name), head.state, head.task, `${head.method} on ${head.backbone}`,
      numberCell(of.score, (value) => `${scoreText(value)} ${head.metric}`), numberCell(of.best, scoreText), numberCell(run.columns.round.at(-1) ?? null, countText),
      numberCell(head.clients ?? null, countText), numberCell(of.size, countText), numberCell(of.sent, bytesText), numberCell(of.up, bytesText),
      numberCell(of.down, bytesText), head.private ? [epsilonText(of.epsilon), of.epsilon ?? Infinity] : NONE, numberCell(of.failed, countText), numberCell(of.seconds, secondsText)];
  });
  return table(columns, rows, "results of the runs");
}

function failureTables(runs, several) {
  const columns = [...(several ? [{ title: "run" }] : []), { title: "reason" }, { title: "times", number: true },
    { title: "clients", number: true }, { title: "first round", number: true }, { title: "last round", number: true }];
  const rows = runs.flatMap((run) => run.failures.map((failure) => [...(several ? [run.name] : []), failure.reason,
    ...["times", "clients", "first", "last"].map((key) => numberCell(failure[key], countText))]));
  return [rows.length ? table(columns, rows, "reasons of failures") : el("p", {}, "No client failed so far.")];
}

function roundsPart(run) {
  const { columns } = run, count = columns.round.length, start = Math.max(0, count - SHOWN_ROUNDS);
  const open = document.getElementById("last-rounds")?.open ?? false;
  const titles = ["round", run.head.metric, "loss", "epsilon", "up", "down", "seconds", "clients", "failed", "late"];
  const texts = [countText, scoreText, scoreText, epsilonText, bytesText, bytesText, secondsText, countText, countText, countText];
  const names = ["round", "score", "loss", "epsilon", "up", "down", "seconds", "clients", "failed", "late"];
  const rows = [];
  if (open) for (let at = count - 1; at >= start; at--) rows.push(names.map((name, column) => numberCell(columns[name][at], texts[column])));
  const part = el("details", { id: "last-rounds", open }, el("summary", {}, `The last ${Math.min(SHOWN_ROUNDS, count)} rounds as a table`),
    ...(open ? [table(titles.map((title) => ({ title, number: true, optional: title === "epsilon" })), rows, "last rounds")] : []));
  part.addEventListener("toggle", () => { if (part.open && !open) part.replaceWith(roundsPart(run)); });
  return part;
}

function settingsPart(runs) {
  const several = runs.length > 1;
  const maps = runs.map((run) => new Map(run.head.settings.map(([key, value]) => [key, value])));
  const defaults = new Map(runs.flatMap((run) => run.head.settings.map(([key, , value]) => [key, value])));
  const keys = [...new Set(maps.flatMap((map) => [...map.keys()]))];
  const differs = several ? keys.filter((key) => new Set(maps.map((map) => map.get(key))).size > 1)
    : keys.filter((key) => maps[0].get(key) !== defaults.get(key));
  const shown = (key, map) => { const value = map.get(key); return !known(value) ? NONE : value === "" ? "(empty)" : value; };
  const columns = [{ title: "setting" }, ...(several ? runs.map((run) => ({ title: run.name })) : [{ title: "value" }, { title: "default" }])];
  const rowOf = (key) => [el("code", {}, key), ...maps.map((map) => shown(key, map)), ...(several ? [] : [shown(key, defaults)])];
  const about = several ? "Settings that differ between the runs." : "Settings that differ from their defaults, or whose defaults depend on the method, the backbone or the strategy.";
  const all = el("details", {}, el("summary", {}, `All ${keys.length} settings`));
  all.addEventListener("toggle", () => { if (all.open && all.childElementCount === 1) all.append(table(columns, keys.map(rowOf), "all settings")); });
  return section("settings", "Settings", el("p", { class: "soft" }, about),
    differs.length ? table(columns, differs.map(rowOf), about) : el("p", {}, "None."), all);
}

function digests(run) {
  const { result } = run.head;
  if (!result) return [];
  const list = el("dl", {}, ...Object.entries(result.digests ?? {}).flatMap(([name, digest]) => [el("dt", {}, name), el("dd", {}, el("code", {}, digest))]));
  return [el("details", {}, el("summary", {}, "Digests (SHA-256)"), list)];
}
