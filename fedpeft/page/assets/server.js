// A deployed server: health, nodes, runs with their buttons, refusals, and the end of the log.
const REASON = 80; // characters of a reason in the table
const RESUMABLE = ["stopped", "unfinished", "failed"];

function epsilonOf(spent) {
  const entries = Object.entries(spent ?? {});
  if (!entries.length) return NONE;
  const text = entries.length === 1 ? epsilonText(entries[0][1]) : entries.map(([unit, value]) => `${unit} ${epsilonText(value)}`).join(", ");
  return [text, Math.max(...entries.map(([, value]) => value ?? Infinity))];
}

function nodesTable(nodes) {
  const columns = [{ title: "node" }, { title: "state" }, { title: "last seen" }, { title: "version" }, { title: "latest run" },
    ...["client", "rounds", "failed", "up", "down", "wire up", "wire down", "epsilon spent"].map((title) => ({ title, number: true, optional: title === "epsilon spent" })), { title: "id" }];
  const rows = nodes.map((node) => [
    node.name || "(not in nodes.json)", badge(node.state), node.state === "online" ? ["now", Infinity] : momentCell(node.last_seen),
    node.version || NONE, node.run ?? NONE, numberCell(node.client, String), numberCell(node.rounds, countText), numberCell(node.failed, countText),
    numberCell(node.bytes?.up, bytesText), numberCell(node.bytes?.down, bytesText),
    numberCell(node.wire?.up, bytesText), numberCell(node.wire?.down, bytesText), epsilonOf(node.epsilon), node.node_id]);
  return table(columns, rows, "nodes");
}

function runsTable(runs, act) {
  const columns = [{ title: "run" }, { title: "state" }, { title: "score", number: true }, { title: "action", hidden: true }, ...["rounds", "clients", "up", "down", "epsilon", "last change"]
    .map((title) => ({ title, number: true, optional: title === "epsilon" })), { title: "reason", optional: true }];
  const rows = runs.map((run) => [
    run.rounds ? el("a", { href: addressOf("runs", [run.name]) }, run.name) : run.name, badge(run.state), numberCell(run.score, scoreText), actionOf(run, act),
    run.rounds ? [`${countText(run.round)} / ${countText(run.rounds)}`, run.round] : NONE, numberCell(run.clients, countText),
    numberCell(run.sent.up, bytesText), numberCell(run.sent.down, bytesText),
    run.private ? [epsilonText(run.epsilon), run.epsilon ?? Infinity] : NONE, numberCell(run.changed, timeText), reasonOf(run)]);
  return table(columns, rows, "runs");
}

// The run's own page has all of a long reason.
function reasonOf({ state, reason }) {
  if (state !== "failed" || !reason) return NONE;
  return reason.length > REASON ? `${reason.slice(0, REASON)} …` : reason;
}

function actionOf(run, act) {
  const action = run.state === "running" ? "stop" : RESUMABLE.includes(run.state) ? "resume" : "";
  if (!action || !data.act) return NONE;
  const label = action === "stop" ? "Stop" : "Resume";
  const button = el("button", { type: "button", class: "action", id: `act-${run.name}`, "aria-label": `${label} run ${run.name}` }, label);
  button.addEventListener("click", () => act(action, run.name, button));
  return button;
}

function serverView(main, first) {
  const note = el("p", { id: "note", role: "status" });
  const head = el("dl", { class: "facts" });
  const places = Object.fromEntries(["problems", "children", "nodes", "runs", "absent", "refused", "log"].map((name) => [name, el("div")]));
  const soft = (text) => el("p", { class: "soft" }, text);
  const start = data.act ? startForm((name, text, button) => act("start", name, button, text), say) : "";
  main.replaceChildren(places.problems, head,
    section("nodes", "Nodes", soft("Rounds, bytes of messages, and the epsilon that the server knows of belong to a node's latest run; bytes on the wire count since its registration."), places.nodes),
    section("runs", "Runs", start, note, places.runs),
    section("absent", "Nodes that did not take part", soft("In a run, or in some of its rounds. A node that was away is asked again when it is back."), places.absent),
    section("refused", "Refused requests", soft("As far as the end of the log has them. A few after a restart of the server or of a node are harmless: the node repeats them by itself."), places.refused),
    section("health", "Processes", places.children),
    section("log", "End of the log", soft("Text that a client may have chosen is left out, and so is information of other programs; server.log has all of it."), places.log));

  function say(line) {
    note.textContent = line;
  }

  // Ask the server to do what a button says; return whether it was done.
  async function act(action, name, button, body = "") {
    if (action === "stop" && !confirm(`Stop run ${name}? It can be resumed after its last finished round.`)) return false;
    button.disabled = true;
    say(`${{ start: "starting", stop: "stopping", resume: "resuming" }[action]} run ${name} …`);
    let done = false;
    try {
      const answer = await fetch(`act/${action}?name=${encodeURIComponent(name)}`, { method: "POST", headers: { "X-Fedpeft-Act": data.act }, body });
      done = answer.ok;
      say(`${done ? "" : "not done: "}${(await answer.text()).trim()}`);
    } catch {
      say("the server did not answer");
    }
    const now = document.getElementById(button.id);
    if (now) now.disabled = false;
    if (document.activeElement === document.body) now?.focus(); // disabled, it lost the focus
    return done;
  }

  const apply = drawer({
    server: (server, { nodes }) => drawFacts(server, nodes),
    problems: (problems) => redraw(places.problems, ...problemList(problems)),
    children: (children) => redraw(places.children, childrenTable(children)),
    nodes: (nodes, { server }) => {
      drawFacts(server, nodes);
      redraw(places.nodes, nodes.length ? nodesTable(nodes) : el("p", {}, "No node is registered: fedpeft server add-node."));
    },
    runs: (runs) => redraw(places.runs, runs.length ? runsTable(runs, act) : el("p", {}, "No run yet.")),
    refused: (refused) => redraw(places.refused, refused.length
      ? table([{ title: "request" }, { title: "times", number: true }], refused.map(({ reason, times }) => [reason, numberCell(times, countText)]), "refused requests")
      : el("p", {}, "No request was refused.")),
    absent: (absent) => redraw(places.absent, absent.length
      ? table([{ title: "run" }, { title: "round", number: true }, { title: "reason" }], absent.map(({ run, round, reason }) => [run, numberCell(round, countText), reason]), "absent nodes")
      : el("p", {}, "All nodes that were asked took part.")),
    log: (log) => redraw(places.log, log.length
      ? table(["time", "level", "source", "run", "text"].map((title) => ({ title })), log.toReversed().map((line) => [momentCell(line.time), line.level, line.source, line.run || NONE, line.text]), "end of the log")
      : el("p", {}, "The log is empty.")),
  });

  function drawFacts(server, nodes) {
    const online = nodes.filter(({ state }) => state === "online").length;
    head.replaceChildren(...facts([
      ["health", server.healthy ? "healthy" : "NOT healthy", server.superlink ? "the SuperLink answers" : "the SuperLink does not answer"],
      ["nodes online", `${countText(online)} of ${countText(nodes.length)}`, "connected to the gateway"],
      ["version", server.version, "fedpeft"],
      ["port for nodes", server.port, `at ${server.host}`],
    ]));
  }

  apply(first);
  return apply;
}
