// Numbers as text, as in fedpeft/readable.py, and elements of the page. All text is set as text,
// never as HTML: names of runs and reasons of failures may hold anything.
const NONE = "–";
const known = (value) => value !== null && value !== undefined;

function bytesText(count) {
  for (const unit of ["B", "KB", "MB"]) {
    if (count < 1000) return unit === "B" ? `${count.toFixed(0)} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(2)} GB`;
}

function secondsText(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  if (!minutes) return `${whole} s`;
  const two = (value) => String(value).padStart(2, "0");
  if (minutes < 60) return `${minutes} min ${two(whole % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

const countText = (value) => Math.round(value).toLocaleString("en-US");
const scoreText = (value) => (known(value) ? value.toFixed(4) : NONE);
// Rounded up: the promise must not look stronger than it is.
const epsilonText = (value) => (known(value) ? (Math.ceil(100 * value) / 100).toFixed(2) : "infinite");
const TIME = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const timeText = (stamp) => TIME.format(new Date(1000 * stamp));
// For the ticks of an axis.
const shortBytes = (value) => bytesText(value).replace(/\.0+ /, " ");
const shortText = (value) => String(Number(value.toPrecision(6)));

// el("a", {href: "..."}, "text", element): an element with attributes and children.
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (value !== false) element.setAttribute(key, value === true ? "" : value);
  element.append(...children);
  return element;
}

function svgEl(name, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}
