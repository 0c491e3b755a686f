// The form that starts a run at a server: its name, and its experiment, typed or from a file.
const MOST_BYTES = 65536; // as the server checks

// act(name, text, button) does it and returns whether it was done; say(line) tells the reader.
function startForm(act, say) {
  const name = el("input", { type: "text", id: "start-name", required: true, maxlength: "100", autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const file = el("input", { type: "file", id: "start-file", accept: ".toml" });
  const text = el("textarea", { id: "start-text", rows: "12", required: true, autocapitalize: "off", spellcheck: "false", "aria-describedby": "start-hint" });
  const button = el("button", { type: "submit", class: "action", id: "start" }, "Start");
  const field = (label, input) => el("p", { class: "field" }, el("label", { for: input.id }, label), input);
  const form = el("form", { class: "start" },
    el("p", { class: "soft", id: "start-hint" }, "The experiment is a TOML file as for fedpeft run; fedpeft config prints one with all settings. Paths in it are paths on the server and on the nodes."),
    field("Name", name), field("Experiment from a file", file), field("Experiment", text), button);

  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    if (chosen.size > MOST_BYTES) return say(`'${chosen.name}' has ${countText(chosen.size)} bytes; expected an experiment of at most ${countText(MOST_BYTES)}`);
    text.value = await chosen.text();
    file.value = ""; // so that the same file can be chosen again after a change
    say(`read '${chosen.name}'`);
    if (!name.value) name.value = chosen.name.replace(/\.toml$/, "");
  });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const size = new TextEncoder().encode(text.value).length;
    if (size > MOST_BYTES) return say(`the experiment has ${countText(size)} bytes; expected at most ${countText(MOST_BYTES)}`);
    if (await act(name.value, text.value, button)) name.value = ""; // the next run has another one
  });
  return el("details", {}, el("summary", {}, "Start a run"), form);
}
