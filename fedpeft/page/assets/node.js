// A node: how much privacy is left, and all that left this site.
function budgetPart(unit) {
  const title = unit.unit === "example" ? "Privacy of each example" : "Privacy of this site as a whole";
  const box = el("div", { class: "budget" }, el("h3", {}, title));
  const at = `at delta ${unit.delta.toExponential(1)}`;
  if (!known(unit.spent)) {
    box.append(el("p", {}, "No bound: some training had no noise."));
    return box;
  }
  if (known(unit.limit)) {
    const share = Math.min(1, unit.spent / unit.limit), left = Math.floor(100 * Math.max(0, unit.limit - unit.spent)) / 100;
    box.append(
      el("progress", { class: "spent", max: 1, value: share, "aria-label": "share of the privacy limit that is spent" }),
      el("p", {}, el("strong", {}, `Spent epsilon ${epsilonText(unit.spent)} of ${shortText(unit.limit)} (${Math.ceil(100 * share)} %); ${left.toFixed(2)} is left`), `, ${at}.`));
  } else
    box.append(el("p", {}, el("strong", {}, `Spent epsilon ${epsilonText(unit.spent)}`), `, ${at}. ${unit.unit === "example" ? "No limit is set: fedpeft node up --max-epsilon." : "A run's own budget limits it."}`));
  if (unit.guessed) box.append(el("p", { class: "soft" }, "The delta is the smallest of the runs so far, as the limit's own delta depends on the number of rows, which this page does not read."));
  if (known(unit.next)) box.append(el("p", {}, nextText(unit)));
  return box;
}

function nextText(unit) {
  const round = `Another round like the last one (round ${countText(unit.last.round)}) would make it ${epsilonText(unit.next)}`;
  if (!known(unit.limit)) return `${round}.`;
  if (unit.next > unit.limit) return `${round}, above the limit: it would be refused.`;
  if (!known(unit.fits)) return `${round}.`;
  return `${round}; ${unit.capped ? "more than " : ""}${countText(unit.fits)} such rounds fit.`;
}

function contentText(message) {
  if (message.error) return `error: ${message.error}`;
  const bytes = Object.entries(message.content ?? {}).map(([name, count]) => `${name} ${bytesText(count)}`);
  const numbers = Object.entries(message.numbers ?? {}).map(([name, value]) => `${name} = ${shortText(value)}`);
  return [...bytes, ...numbers].join(", ") || "an empty reply";
}

// Round 0 of training asks for sums, from which a head starts.
const kindText = ({ kind, round }) => (kind === "train" && round === 0 ? "sums" : kind.replace("query.", ""));

function messagesTable(messages) {
  const columns = [{ title: "time" }, { title: "message" }, ...["round", "sent", "received"].map((title) => ({ title, number: true })), { title: "what left this site" }, { title: "run" }];
  const rows = messages.map((message) => [momentCell(message.time), kindText(message), numberCell(message.round, countText),
    numberCell(message.up, bytesText), numberCell(message.down, bytesText), contentText(message), message.name || message.run]);
  return table(columns, rows, "messages");
}

function siteRunsTable(runs) {
  const columns = [{ title: "run" }, { title: "about" }, ...["rounds trained", "messages", "sent", "of this, updates", "received", "first", "last"].map((title) => ({ title, number: true })), { title: "number of the run" }];
  const rows = runs.map((run) => [run.name || run.run, run.about || NONE, numberCell(run.rounds, countText), numberCell(run.messages, countText), numberCell(run.up, bytesText),
    numberCell(run.payload, bytesText), numberCell(run.down, bytesText), momentCell(run.first), momentCell(run.last), run.run]);
  return table(columns, rows, "runs");
}

function nodeView(main, first) {
  const head = el("dl", { class: "facts" });
  const places = Object.fromEntries(["problems", "privacy", "runs", "messages", "children"].map((name) => [name, el("div")]));
  const about = el("p", { class: "soft" });
  main.replaceChildren(places.problems, head,
    section("privacy", "How much privacy is left", places.privacy),
    section("runs", "What left this site, by run", about, places.runs),
    section("messages", "What left this site, message by message", places.messages),
    section("health", "Processes", places.children));

  const apply = drawer({
    problems: (problems) => redraw(places.problems, ...problemList(problems)),
    node: (node) => {
      const since = node.since ? `since ${momentText(node.since)}` : "fedpeft node up starts it";
      const line = !node.tunnel ? ["no", "the node does not run"]
        : node.tunnel.connected ? ["yes", `since ${momentText(node.tunnel.since)}`] : ["NO", node.tunnel.problem];
      head.replaceChildren(...facts([
        ["node", node.up ? "up" : "down", since],
        ["connected to the server", ...line],
        ["sent in all", bytesText(node.total.up), `${countText(node.total.messages)} messages`],
        ["received in all", bytesText(node.total.down), "from the server"],
        ["rounds trained", countText(node.total.rounds), "requests answered with an update"],
        ["sums of features", known(node.sums) ? (node.sums ? "sent" : "refused") : NONE, node.sums ? "if a run asks for them; fedpeft node up --no-sums refuses" : "no head of a run starts from this site's texts"],
        ["version", node.version, "fedpeft"],
      ]));
      about.textContent = node.total.since ? `Recorded since ${momentText(node.total.since)}; the record has a limited size, so the oldest messages are dropped. A message is recorded before it is sent, so the record includes messages that never arrived.` : "";
    },
    privacy: (privacy) => redraw(places.privacy, ...(privacy === null ? [el("p", {}, "The privacy spent is being computed …")]
      : privacy.length ? privacy.map(budgetPart) : [el("p", {}, "No privacy was spent, and no limit is set: fedpeft node up --max-epsilon. Runs without privacy are in no ledger.")])),
    runs: (runs) => redraw(places.runs, runs.length ? siteRunsTable(runs) : el("p", {}, "Nothing has left this site.")),
    messages: (messages) => redraw(places.messages, messages.length ? messagesTable(messages) : el("p", {}, "No message yet.")),
    children: (children) => redraw(places.children, childrenTable(children)),
  });

  apply(first);
  return apply;
}
