// Start the view of the page's data, and keep it up to date while a server sends changes.
const data = JSON.parse(document.getElementById("data").textContent);

function start() {
  const views = { runs: runsView, list: listView, study: studyView, server: serverView, node: nodeView };
  const apply = views[data.view](document.getElementById("view"), data);
  if (!data.live) return;
  if (data.view !== data.home && !data.alone)
    document.getElementById("trail").append(el("a", { href: "./" }, data.home === "server" ? "← The server" : "← All runs and studies"));
  const status = document.getElementById("status");
  let cursor = data.cursor, source = null;

  function follow() {
    const query = [`view=${data.view}`, `cursor=${encodeURIComponent(cursor)}`,
      ...data.names.map((name) => `name=${encodeURIComponent(name)}`)];
    source = new EventSource(`events?${query.join("&")}`);
    source.onopen = () => { status.textContent = "live"; };
    source.onerror = () => { status.textContent = "not connected, reconnecting; the page shows the last data that arrived"; };
    source.onmessage = (event) => {
      const change = JSON.parse(event.data);
      cursor = change.cursor;
      performance.clearMeasures("update"); // a page may stay open for weeks
      const begin = performance.now();
      apply(change);
      performance.measure("update", { start: begin });
    };
  }

  // A browser has few connections to a server, so hidden pages give theirs back.
  document.addEventListener("visibilitychange", () => {
    source?.close();
    source = null;
    if (!document.hidden) follow();
  });
  if (!document.hidden) follow();
}

const began = performance.now();
start();
performance.measure("start", { start: began });
