// The list of runs and studies.
function listView(main, data) {
  const { task, method, score, metric, round, clients, epsilon, sent, changed } = MEASURES;
  const runs = new RunTable([score, metric, round, task, method, clients, epsilon, sent, changed], "runs");
  const studies = new Map();
  const place = el("div");
  const studySection = section("studies", "Studies", place);
  const runSection = section("all", "Runs", runs.element);
  main.replaceChildren(studySection, runSection);

  function drawStudies() {
    const columns = [{ title: "study" }, { title: "runs begun", number: true },
      { title: "finished", number: true }, { title: "failed", number: true }];
    const rows = [...studies.values()].map((study) => [
      el("a", { href: addressOf("study", [study.name]) }, study.name),
      numberCell(study.begun, countText), numberCell(study.finished, countText), numberCell(study.failed, countText)]);
    place.replaceChildren(table(columns, rows, "studies"));
    studySection.hidden = !studies.size;
  }

  function apply(change) {
    if (change.whole) {
      runs.clear();
      studies.clear();
    }
    for (const name of change.gone ?? []) studies.delete(name);
    runs.remove(change.gone ?? []);
    const rows = change.rows.filter((row) => row.kind === "run");
    runs.put(rows.sort((one, other) => other.changed - one.changed));
    for (const row of change.rows) if (row.kind === "study") studies.set(row.name, row);
    drawStudies();
    runSection.hidden = !runs.rows.size && studies.size > 0;
  }

  apply(data);
  return apply;
}
