// Figures: lines or points with marks, and stacked bars, drawn as SVG of a fixed shape.
const WIDTH = 403, HEIGHT = 266, LEFT = 58, RIGHT = 11, TOP = 27, BOTTOM = 38;
const MARKS = 9; // on a line
const POINTS = 340; // of a path: about one per pixel
const NEAR = 22; // pixels from a point to the pointer
const DASHES = ["", "6 3", "2 2", "7 2 2 2"];
// Marks in a box from -1 to 1; with color and dash they tell series apart for any color vision.
const SHAPES = [
  "M-.9,0A.9,.9 0 1 0 .9,0A.9,.9 0 1 0 -.9,0Z", "M-.8,-.8H.8V.8H-.8Z", "M0,-1L1,.8H-1Z",
  "M0,-1.1L1.1,0L0,1.1L-1.1,0Z", "M0,1L1,-.8H-1Z",
  "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
  "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
  "M-1,0L.8,-1V1Z", "M1,0L-.8,-1V1Z", "M0,-1L.95,-.3L.6,.8H-.6L-.95,-.3Z",
  "M.5,-.87L1,0L.5,.87H-.5L-1,0L-.5,-.87Z",
  "M0,-1.1L.3,-.35L1.05,-.34L.45,.13L.65,.9L0,.45L-.65,.9L-.45,.13L-1.05,-.34L-.3,-.35Z",
];
const colour = (number) => `var(--c${number % data.colours})`;
const shape = (number) => SHAPES[(number + Math.floor(number / data.colours)) % SHAPES.length];

// Round numbers that divide a range into about `count` parts.
function ticks(low, high, count, whole = false) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  let step = power * [1, 2, 5, 10].find((digit) => digit * power >= raw * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, at) => (first + at) * step);
}

function rangeOf(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!known(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
}

// Leave out points that share a pixel column, but keep its first, lowest, highest and last.
function thinned(points) {
  if (points.length <= 2 * POINTS) return points;
  const kept = [];
  let group = [], column = null;
  const close = () => {
    if (!group.length) return;
    const byHeight = group.reduce(([low, high], point) =>
      [point[1] < low[1] ? point : low, point[1] > high[1] ? point : high], [group[0], group[0]]);
    kept.push(...[...new Set([group[0], ...byHeight, group.at(-1)])].sort((a, b) => a[2] - b[2]));
  };
  for (const point of points) {
    if (Math.floor(point[0]) !== column) {
      close();
      [group, column] = [[], Math.floor(point[0])];
    }
    group.push(point);
  }
  close();
  return kept;
}

class Figure {
  constructor(name, title) {
    this.title = title;
    this.svg = svgEl("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": title,
    });
    this.element = el("figure", { id: name, class: "drawn" }, this.svg);
  }

  // Draw title, axes and grid; return functions from values to pixels.
  frame(x, y) {
    this.svg.replaceChildren(svgEl("text", { x: LEFT, y: 14, class: "title" }, this.title));
    const right = WIDTH - RIGHT, bottom = HEIGHT - BOTTOM;
    const across = (value) => LEFT + ((value - x.low) / (x.high - x.low || 1)) * (right - LEFT);
    const up = (value) => bottom - ((value - y.low) / (y.high - y.low || 1)) * (bottom - TOP);
    for (const tick of x.ticks ?? ticks(x.low, x.high, 5, x.whole)) {
      const at = across(tick);
      if (!x.plain) this.svg.append(svgEl("path", { d: `M${at},${TOP}V${bottom}`, class: "grid" }));
      this.svg.append(svgEl("text", { x: at, y: bottom + 14, class: "tick middle" }, x.short(tick)));
    }
    for (const tick of ticks(y.low, y.high, 5, y.whole)) {
      const at = up(tick);
      this.svg.append(
        svgEl("path", { d: `M${LEFT},${at}H${right}`, class: "grid" }),
        svgEl("text", { x: LEFT - 5, y: at + 3, class: "tick end" }, y.short(tick)),
      );
    }
    const middle = (TOP + bottom) / 2;
    this.svg.append(
      svgEl("path", { d: `M${LEFT},${TOP}V${bottom}H${right}`, class: "axis" }),
      svgEl("text", { x: (LEFT + right) / 2, y: HEIGHT - 6, class: "middle" }, x.label),
      svgEl("text", { transform: `translate(11 ${middle}) rotate(-90)`, class: "middle" }, y.label),
    );
    return [across, up];
  }
}

class Chart extends Figure {
  constructor(name, title) {
    super(name, title);
    this.series = [];
    this.at = [0, -1]; // the point that the keyboard has chosen: series and index
    this.svg.addEventListener("pointermove", (event) => this._point(event));
    this.svg.addEventListener("pointerdown", (event) => this._point(event));
    this.svg.addEventListener("pointerleave", () => this._mark(null));
    this.svg.addEventListener("blur", () => this._mark(null));
    this.svg.addEventListener("keydown", (event) => this._key(event));
  }

  // x, y: {label, short, long, whole?, low?, high?}; series: [{number, label, x, y, dash?, points?}].
  draw(x, y, series, off = new Set()) {
    this.x = x;
    this.y = y;
    const [low, high] = rangeOf(series.flatMap((one) => [rangeOf(one.x)].flat()));
    const [least, most] = rangeOf(series.flatMap((one) => (one.y.some(known) ? rangeOf(one.y) : [])));
    const space = 0.06 * (most - least || Math.abs(most) || 1);
    this.axes = {
      x: { ...x, low: x.low ?? low, high: Math.max(x.high ?? high, high) },
      y: { ...y, low: least >= 0 && y.zero ? 0 : least - space, high: Math.max(most + space, y.whole ? 1.05 : -Infinity) },
    };
    const [across, up] = this.frame(this.axes.x, this.axes.y);
    this.series = series.map((one) => {
      const points = [];
      for (let at = 0; at < one.x.length; at++)
        if (known(one.y[at]) && known(one.x[at]))
          points.push([across(one.x[at]), up(one.y[at]), at]);
      return { ...one, pixels: points };
    });
    for (const one of this.series) this.svg.append(this._drawn(one, off.has(one.number)));
    this.ring = svgEl("circle", { r: 5, class: "ring", visibility: "hidden" });
    this.svg.append(this.ring);
    this.svg.setAttribute("aria-label", this._described());
  }

  _drawn(one, hidden) {
    const group = svgEl("g", { "data-series": one.number, class: hidden ? "off" : "" });
    const line = thinned(one.pixels).map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`);
    if (line.length > 1 && !one.points) {
      const dash = DASHES[(one.dash ?? Math.floor(one.number / data.colours)) % DASHES.length];
      group.append(svgEl("path", {
        d: `M${line.join("L")}`, class: "line", stroke: colour(one.number), "stroke-dasharray": dash,
      }));
    }
    const every = one.points ? 1 : Math.max(1, Math.ceil(one.pixels.length / MARKS));
    const last = one.pixels.length - 1, first = one.points ? 0 : (one.number * 2) % every;
    for (let at = first; at <= last; at += every) group.append(this._shape(one, at));
    if (last >= 0 && (last - first) % every) group.append(this._shape(one, last));
    return group;
  }

  _shape(one, at) {
    const [x, y] = one.pixels[at];
    return svgEl("path", {
      d: shape(one.number), class: "mark", fill: colour(one.number),
      transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(3.4)`,
    });
  }

  _described() {
    const parts = this.series.filter((one) => one.pixels.length).map((one) => {
      const last = one.pixels.at(-1)[2];
      return `${one.label}: ${this.y.long(one.y[last])} at ${this.x.long(one.x[last])}`;
    });
    return `${this.title}, ${this.y.label} against ${this.x.label}. ${parts.join("; ") || "no data yet"}`;
  }

  _shown() {
    return this.series.filter((one) => one.pixels.length &&
      !this.svg.querySelector(`[data-series="${one.number}"].off`));
  }

  _point(event) {
    const box = this.svg.getBoundingClientRect(), scale = box.width / WIDTH;
    const x = (event.clientX - box.left) / scale, y = (event.clientY - box.top) / scale;
    let best = null, least = NEAR / scale;
    for (const one of this._shown())
      for (const point of one.pixels) {
        if (Math.abs(point[0] - x) > least) continue;
        const distance = Math.hypot(point[0] - x, point[1] - y);
        if (distance < least) [best, least] = [[one, point], distance];
      }
    this._mark(best);
  }

  _key(event) {
    const shown = this._shown();
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (event.key === "Escape") this._mark(null);
    if (!step || !shown.length) return;
    event.preventDefault();
    const series = (this.at[0] + step[0] + shown.length) % shown.length;
    const points = shown[series].pixels;
    const start = this.at[1] < 0 ? points.length - 1 - step[1] : this.at[1];
    const index = Math.max(0, Math.min(points.length - 1, start + step[1]));
    this.at = [series, index];
    this._mark([shown[series], points[index]]);
  }

  // Show the values of a point: [series, [x, y, index]]; null hides them.
  _mark(found) {
    this.ring?.setAttribute("visibility", found ? "visible" : "hidden");
    if (!found) return showTip("");
    const [one, [x, y, index]] = found, box = this.svg.getBoundingClientRect();
    this.ring.setAttribute("cx", x);
    this.ring.setAttribute("cy", y);
    const left = box.left + (x / WIDTH) * box.width, top = box.top + (y / HEIGHT) * box.height;
    const text = `${one.label}\n${this.y.label}: ${this.y.long(one.y[index])}\n${this.x.long(one.x[index])}`;
    showTip(text, { left, right: left, top, bottom: top });
  }
}

class Bars extends Figure {
  // labels: of the classes; bars: [bars][classes]; x: {label}; y: {label}; names: of the bars, or [].
  draw(labels, bars, x, y, clients, names) {
    const most = Math.max(1, ...bars.map((bar) => bar.reduce((sum, part) => sum + part, 0)));
    const wide = { ...x, low: -0.5, high: bars.length - 0.5, plain: true, short: countText };
    wide.ticks = clients === bars.length ? ticks(0, bars.length - 1, 6, true) : [];
    const [across, up] = this.frame(wide, { ...y, low: 0, high: 1.04 * most, short: countText, whole: true });
    const step = across(1) - across(0), gap = Math.min(1.5, 0.15 * step);
    bars.forEach((bar, client) => {
      let sum = 0;
      bar.forEach((part, kind) => {
        if (!part) return;
        const top = up(sum + part), height = up(sum) - top;
        const of = labels.length ? `\n${labels[kind]}: ${countText(part)}` : `\n${countText(part)}`;
        this.svg.append(svgEl("rect", {
          x: (across(client) - step / 2 + gap / 2).toFixed(2), y: top.toFixed(2),
          width: (step - gap).toFixed(2), height: Math.max(0.3, height).toFixed(2),
          fill: colour(kind), class: "bar",
          "data-tip": (names[client] ?? (clients === bars.length ? `client ${client}` : x.label)) + of,
        }));
        sum += part;
      });
    });
    tooltips(this.svg);
    const total = bars.map((bar) => bar.reduce((sum, part) => sum + part, 0));
    this.svg.setAttribute("aria-label",
      `${this.title}: from ${countText(Math.min(...total))} to ${countText(Math.max(...total))} examples a client`);
    if (labels.length) this.element.append(el("figcaption", {}, ...labels.slice(0, 12).map((label, kind) =>
      el("span", { class: "class" }, swatch(kind, true), label)),
      labels.length > 12 ? `and ${labels.length - 12} more classes` : ""));
  }
}

// The mark of a series, or a square of its color.
function swatch(number, square = false) {
  const svg = svgEl("svg", { viewBox: "-1.3 -1.3 2.6 2.6", "aria-hidden": "true", class: "swatch" });
  const path = svgEl("path", { d: square ? "M-1,-1H1V1H-1Z" : shape(number), fill: colour(number) });
  svg.append(path);
  return svg;
}
