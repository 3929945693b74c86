"use strict";
// Draws the charts from the values in the page, which have the form of `Charts` in charts.rs. Names
// come from files, so they become text and never HTML.

window.addEventListener("error", (event) => {
  document.documentElement.dataset.error = `${event.message} (line ${event.lineno})`;
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = `The charts could not be drawn: ${event.message}`;
  document.getElementById("charts").append(note);
});

(() => {
const data = JSON.parse(document.getElementById("data").textContent);
// A short curve needs no smoothing, which would only put it in the wrong place.
const isLong = data.charts.some((chart) => chart.series.some((s) => s.is_noisy && s.y.length > 100));
const view = { x: "step", smoothing: isLong ? 0.6 : 0, runs: new Set() };
const DASHES = ["", "7 4", "2 4", "9 4 2 4"];
const SHOWN_PARTS = 8;
const HEIGHT = 260;

// ---- Numbers ----

/** A number in JSON, or the text that stands for one that is not finite. */
const exact = (v) => (typeof v === "string" ? { NaN, inf: Infinity, "-inf": -Infinity }[v] : v);

/** Rounds half to even, as Rust does, where JavaScript rounds half up. */
function rounded(value, method, digits) {
  const [long, exponent = ""] = value[method](digits + 40).split("e");
  const [kept, rest] = [long.slice(0, -40).replace(/\.$/, ""), long.slice(-40)];
  const isTie = /^50*$/.test(rest) && "02468".includes(kept.at(-1));
  return isTie ? kept + (exponent && `e${exponent}`) : value[method](digits);
}

/** As the tables write it: four significant digits, no more than it has. */
function number(v) {
  const size = Math.abs(v);
  if (!Number.isFinite(v)) return Number.isNaN(v) ? "NaN" : v > 0 ? "inf" : "-inf";
  if (Number.isInteger(v) && size < 1e9) return Object.is(v, -0) ? "-0" : String(v);
  if (size >= 1e-3 && size < 1e6) {
    return rounded(v, "toFixed", Math.max(0, 3 - Math.floor(Math.log10(size))));
  }
  return rounded(v, "toExponential", 3).replace("e+", "e");
}

/** Round values between two, about as many as asked, and how they are written. */
function ticks(lo, hi, count, isWhole) {
  const raw = (hi - lo) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
  if (isWhole) step = Math.max(1, step);
  const values = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i++) values.push(i * step);
  const most = Math.max(Math.abs(lo), Math.abs(hi));
  const digits = Math.floor(Math.log10(step) + 1e-9);
  if (most >= 1e12 || most < 1e-3) {
    const places = Math.max(0, Math.floor(Math.log10(most)) - digits);
    return values.map((v) => [v, v === 0 ? "0" : v.toExponential(places).replace("e+", "e")]);
  }
  const [unit, sign] = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([u]) => most >= u) ?? [1, ""];
  const scale = unit === 1e4 ? 1e3 : unit;
  const places = Math.max(0, Math.round(Math.log10(scale)) - digits);
  return values.map((v) => [v, v === 0 ? "0" : (v / scale).toFixed(places) + sign]);
}

function logTicks(lo, hi, count) {
  const decades = Math.log10(hi / lo);
  const every = Math.max(1, Math.ceil(decades / count));
  const inner = decades < 1.2 ? [1, 2, 3, 5, 7] : decades < 3 ? [1, 2, 5] : [1];
  const values = [];
  for (let e = Math.floor(Math.log10(lo)); e <= Math.log10(hi); e++) {
    if (e % every === 0) values.push(...inner.map((m) => m * 10 ** e).filter((v) => v >= lo && v <= hi));
  }
  if (values.length < 3) return ticks(lo, hi, count, false).filter(([v]) => v > 0);
  const text = (v) => (v >= 1e-3 && v < 1e4 ? String(+v.toPrecision(2)) : v.toExponential(0).replace("e+", "e"));
  return values.map((v) => [v, text(v)]);
}

/** Exponential moving average that starts unbiased: Kingma and Ba, "Adam", section 3. */
function smoothed(ys, weight) {
  let [sum, bias] = [0, 1];
  return ys.map((y) => {
    if (!Number.isFinite(y)) return y;
    sum = weight * sum + (1 - weight) * y;
    bias *= weight;
    return sum / (1 - bias);
  });
}

/**
 * A line as an SVG path with gaps where values cannot be drawn. Of the points on one column of
 * pixels the first, lowest, highest and last stay. Gives the points that stand alone as well.
 */
function path(xs, ys, toX, toY, canDraw) {
  let [d, from, count] = ["", 0, 0];
  const alone = [];
  const point = (i) => {
    d += `${count++ ? "L" : "M"}${toX(xs[i]).toFixed(1)},${toY(ys[i]).toFixed(1)}`;
  };
  const column = (start, end) => {
    let [low, high] = [start, start];
    for (let i = start; i < end; i++) {
      if (ys[i] < ys[low]) low = i;
      if (ys[i] > ys[high]) high = i;
    }
    const kept = new Set([start, Math.min(low, high), Math.max(low, high), end - 1]);
    kept.forEach(point);
  };
  for (let i = 0; i < ys.length; i = from) {
    from = i + 1;
    if (!canDraw(ys[i])) {
      count = 0;
      continue;
    }
    if (!count && (from === ys.length || !canDraw(ys[from]))) alone.push(i);
    const pixel = Math.round(toX(xs[i]));
    while (from < ys.length && canDraw(ys[from]) && Math.round(toX(xs[from])) === pixel) from++;
    column(i, from);
  }
  return { d, alone };
}

// ---- Elements ----

const SVG = "http://www.w3.org/2000/svg";
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A button that is on or off. */
function toggle(isOn, act, ...children) {
  const button = html("button", { type: "button", "aria-pressed": isOn }, ...children);
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    act(on);
  });
  return button;
}

/** How a series looks: several runs have a colour each, a single one has colours for its names. */
function style({ kind, part, run }, chart) {
  const several = data.runs.length > 1;
  const isTrained = chart.series.some((s) => s.kind === "train" || s.kind === "epoch");
  const color = several ? run : chart.has_parts ? part : { train: 0, val: 1, epoch: 2, test: 3, other: 0 }[kind];
  let dash = kind === "val" && several ? 1 : 0;
  if (chart.has_parts) dash = several ? part : Math.floor(part / 8) + (kind === "val" && isTrained ? 1 : 0);
  return { color: `color:var(--c${color % 8})`, dash: DASHES[dash % 4], width: kind === "epoch" ? 2.25 : 1.75 };
}

// ---- Charts ----

class Chart {
  constructor(spec) {
    this.spec = spec;
    this.isLog = false;
    const most = Math.max(0, ...spec.series.flatMap((s) => s.y.map(exact).filter(Number.isFinite).reduce((a, b) => Math.max(a, b), 0)));
    const power = spec.is_bytes ? Math.min(4, Math.max(0, Math.floor(Math.log2(most || 1) / 10))) : 0;
    this.unit = { scale: 1024 ** power, name: spec.is_bytes ? ["B", "KiB", "MiB", "GiB", "TiB"][power] : "" };
    this.series = spec.series.map((s) => {
      const y = s.y.map((v) => exact(v) / this.unit.scale);
      const label = data.runs.length > 1 ? `${data.runs[s.run]} · ${s.name}` : s.name;
      const isShown = !spec.has_parts || s.part < SHOWN_PARTS;
      return { ...s, ...style(s, spec), axis: data.xs[s.x], y, label, isShown, finite: y.filter(Number.isFinite).length };
    });
    this.build();
  }

  get visible() {
    return this.series.filter((s) => s.isShown && !view.runs.has(s.run));
  }

  get wanted() {
    return Math.max(240, this.root.clientWidth - 24);
  }

  text(value) {
    return number(value) + (this.unit.name && ` ${this.unit.name}`);
  }

  build() {
    const { title } = this.spec;
    const log = toggle(false, (on) => { this.isLog = on; this.draw(); }, "log y");
    log.setAttribute("aria-label", `logarithmic y axis of ${title}`);
    log.disabled = !this.series.some((s) => s.y.some((y) => y > 0 && Number.isFinite(y)));
    this.plot = svg("svg", { class: "plot", tabindex: 0, role: "img", "aria-label": `${title}: ${this.series.length} series; the arrow keys read values` });
    this.legend = html("div", { class: "legend" });
    this.note = html("p");
    this.tip = html("div", { class: "tip", role: "status", hidden: "" });
    this.scale = html("small");
    this.root = html("figure", { "data-title": title }, html("header", {}, html("h3", {}, title, this.scale), log), this.plot, this.legend, this.note, this.tip);
    const several = data.runs.length > 1;
    const rows = new Map();
    for (const s of this.series) {
      const line = svg("line", { x1: 1, x2: 21, y1: 6, y2: 6, stroke: "currentColor", "stroke-width": s.width, "stroke-dasharray": s.dash });
      const mark = s.kind === "test" ? svg("circle", { cx: 11, cy: 6, r: 4, fill: "none", stroke: "currentColor", "stroke-width": 2 }) : line;
      const swatch = svg("svg", { width: 22, height: 12, style: s.color, "aria-hidden": true }, mark);
      if (s.kind === "epoch") swatch.append(svg("circle", { cx: 11, cy: 6, r: 3, fill: "currentColor" }));
      const last = s.y.length ? this.text(s.y.at(-1)) : "";
      const show = toggle(s.isShown, (on) => { s.isShown = on; this.draw(); }, swatch, several ? data.runs[s.run] : s.name, html("small", {}, last));
      // Of several runs, a line for each name.
      const row = several ? s.name : "";
      if (!rows.has(row)) {
        rows.set(row, html("div", { role: "group", "aria-label": s.name }));
        this.legend.append(html("div", { class: "row" }, ...(several ? [html("span", {}, s.name)] : []), rows.get(row)));
      }
      rows.get(row).append(show);
    }
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      this.read(this.nearest(((event.clientX - box.left) / box.width) * this.width));
    });
    this.plot.addEventListener("pointerleave", () => this.read(null));
    this.plot.addEventListener("blur", () => this.read(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    const width = this.wanted;
    const height = HEIGHT;
    const canDraw = (y) => Number.isFinite(y) && (!this.isLog || y > 0);
    for (const s of this.visible) {
      s.xs = s.axis[view.x];
      s.soft = s.is_noisy && view.smoothing > 0 && s.finite > 2 ? smoothed(s.y, view.smoothing) : null;
    }
    let [low, high] = [Infinity, -Infinity];
    for (const y of this.visible.flatMap((s) => s.y.filter(canDraw))) {
      low = Math.min(low, y);
      high = Math.max(high, y);
    }
    const isEmpty = low > high;
    if (isEmpty) [low, high] = [this.isLog ? 0.1 : 0, 1];
    if (this.isLog) {
      const pad = low === high ? 2 : (high / low) ** 0.04;
      [low, high] = [low / pad, high * pad];
    } else {
      const pad = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.05;
      [low, high] = [low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad];
    }
    const yTicks = this.isLog ? logTicks(low, high, 6) : ticks(low, high, 6, false);
    const left = 14 + 7 * Math.max(1, ...yTicks.map(([, text]) => text.length));
    const [top, right, bottom] = [10, 24, 38];
    const [x0, x1] = xRange();
    const toX = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
    const at = this.isLog ? Math.log : (y) => y;
    const toY = (y) => height - bottom - ((at(y) - at(low)) / (at(high) - at(low))) * (height - top - bottom);
    Object.assign(this, { width, toX, toY, canDraw, left, top, right, bottom: height - bottom });

    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.plot.replaceChildren();
    for (const [y, text] of yTicks) {
      this.plot.append(
        svg("line", { class: "grid-line", x1: left, x2: width - right, y1: toY(y), y2: toY(y) }),
        svg("text", { x: left - 8, y: toY(y) + 4, "text-anchor": "end" }, text));
    }
    for (const [x, text] of ticks(x0, x1, Math.min(8, Math.floor((width - left) / 70)), x1 - x0 >= 2 || view.x === "step")) {
      this.plot.append(
        svg("line", { class: "axis", x1: toX(x), x2: toX(x), y1: height - bottom, y2: height - bottom + 4 }),
        svg("text", { x: toX(x), y: height - bottom + 17, "text-anchor": "middle" }, text));
    }
    this.scale.textContent = [" ", this.unit.name, this.isLog && "log scale"].filter(Boolean).join(" ");
    this.plot.append(
      svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
      svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, view.x === "step" ? "step" : "epochs"));
    this.visible.forEach((s) => this.plot.append(this.line(s)));
    this.cross = svg("g");
    this.plot.append(this.cross);
    this.read(null);
    this.say(isEmpty);
  }

  /** A series as lines, dots where a line shows nothing or values are few, and marks for gaps. */
  line(s) {
    const { toX, toY, canDraw } = this;
    const group = svg("g", { class: "series", style: s.color, "data-name": s.name, "data-run": s.run, "data-points": s.finite });
    const main = path(s.xs, s.soft ?? s.y, toX, toY, canDraw);
    if (s.kind !== "test") {
      if (s.soft) group.append(svg("path", { class: "line raw", "stroke-width": 1, d: path(s.xs, s.y, toX, toY, canDraw).d }));
      group.append(svg("path", { class: "line", "stroke-width": s.width, "stroke-dasharray": s.dash, d: main.d }));
    }
    const isWhole = s.kind === "val" || s.kind === "epoch";
    const dots = s.kind === "test" || (isWhole && s.finite <= 30) ? s.y.keys() : main.alone;
    for (const i of dots) {
      if (!canDraw(s.y[i])) continue;
      const [shape, r] = s.kind === "test" ? ["ring", 4] : ["dot", 2.75];
      group.append(svg("circle", { class: shape, cx: toX(s.xs[i]), cy: toY(s.y[i]), r }));
    }
    const gaps = s.xs.filter((_, i) => !Number.isFinite(s.y[i]));
    const marks = new Set(gaps.map((x) => Math.round(toX(x))));
    if (marks.size) group.append(svg("path", { class: "miss", d: [...marks].map((x) => `M${x},${this.bottom}v-6`).join("") }));
    return group;
  }

  /** What the picture alone does not tell. */
  say(isEmpty) {
    const says = this.visible
      .filter((s) => s.finite < s.y.length)
      .map((s) => `${s.y.length - s.finite} of ${s.y.length} values of ${s.label} are NaN or infinite (gaps, marked at the axis).`);
    const below = this.visible.reduce((sum, s) => sum + s.y.filter((y) => Number.isFinite(y) && y <= 0).length, 0);
    if (this.isLog && below) says.push(`${below} values of 0 or below have no place on a log scale.`);
    const hidden = this.series.length - this.visible.length;
    if (hidden) says.push(`${hidden} of ${this.series.length} series are hidden; their names show them.`);
    if (isEmpty) says.push("There is nothing to draw.");
    this.note.textContent = says.join(" ");
  }

  /** The place on the x axis that has a value nearest to a pixel. */
  nearest(pixel) {
    let best = null;
    for (const s of this.visible) {
      const x = s.xs[index(s.xs, pixel, this.toX)];
      if (x !== undefined && (best === null || Math.abs(this.toX(x) - pixel) < Math.abs(this.toX(best) - pixel))) best = x;
    }
    return best;
  }

  key(event) {
    const xs = [...new Set(this.visible.flatMap((s) => s.xs))].sort((a, b) => a - b);
    const now = this.at === null ? -1 : xs.indexOf(this.at);
    const step = event.shiftKey ? 10 : 1;
    const to = { ArrowRight: now + step, ArrowLeft: now < 0 ? xs.length - 1 : now - step, Home: 0, End: xs.length - 1 }[event.key];
    if (event.key === "Escape") this.read(null);
    if (to === undefined || !xs.length) return;
    event.preventDefault();
    this.read(xs[Math.min(xs.length - 1, Math.max(0, to))]);
  }

  /** Shows the values at a place on the x axis; null hides them. */
  read(x) {
    this.at = x;
    this.tip.hidden = x === null;
    this.cross.replaceChildren();
    if (x === null) return;
    const pixel = this.toX(x);
    this.cross.append(svg("line", { class: "cross", x1: pixel, x2: pixel, y1: this.top, y2: this.bottom }));
    const rows = [html("strong", {}, `${view.x === "step" ? "step" : "epochs"} ${number(x)}`)];
    for (const s of this.visible) {
      const i = index(s.xs, pixel, this.toX);
      if (s.xs[i] === undefined) continue;
      const y = (s.soft ?? s.y)[i];
      if (this.canDraw(y)) this.cross.append(svg("circle", { class: "ring", style: s.color, cx: this.toX(s.xs[i]), cy: this.toY(y), r: 4 }));
      const place = s.xs[i] === x ? "" : ` at ${number(s.xs[i])}`;
      const soft = s.soft && Number.isFinite(y) ? ` (smoothed ${this.text(y)})` : "";
      const dot = html("i", { class: "swatch", style: `background:currentColor;${s.color};margin:0` });
      rows.push(html("div", {}, dot, html("span", {}, s.label), html("b", {}, this.text(s.y[i]), html("small", {}, soft + place))));
    }
    this.tip.replaceChildren(...rows);
    // A few values stand beside the line, on the side that has more room; many below the plot.
    const line = 12 + pixel;
    const wide = this.tip.offsetWidth;
    const place = pixel > this.width / 2 ? line - wide - 12 : line + 12;
    this.tip.style.left = `${Math.max(6, Math.min(this.root.clientWidth - wide - 6, place))}px`;
    this.tip.style.top = `${this.root.querySelector("header").offsetHeight + (rows.length < 7 ? 24 : 12 + HEIGHT)}px`;
  }
}

/** Which of the rising `xs` lies nearest to a pixel. */
function index(xs, pixel, toX) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (toX(xs[middle]) < pixel) low = middle;
    else high = middle;
  }
  return Math.abs(toX(xs[low]) - pixel) <= Math.abs(toX(xs[high]) - pixel) ? low : high;
}

/** The same for all charts, so that they can be compared. */
function xRange() {
  let [low, high] = [Infinity, -Infinity];
  for (const axis of data.xs) {
    const xs = axis[view.x];
    if (xs.length) [low, high] = [Math.min(low, xs[0]), Math.max(high, xs.at(-1))];
  }
  if (low > 0 && low < high * 0.2) low = 0;
  return low < high ? [low, high] : [low - 1, high + 1];
}

// ---- The page ----

const charts = data.charts.map((spec) => new Chart(spec));
const drawAll = () => charts.forEach((chart) => chart.draw());
const section = document.getElementById("charts");
if (!charts.length) {
  section.append(html("p", {}, "No values yet."));
  return;
}
const radios = ["step", "epoch"].map((x) => {
  const input = html("input", { type: "radio", name: "x", value: x });
  input.checked = x === view.x;
  input.addEventListener("change", () => { view.x = x; drawAll(); });
  return html("label", {}, input, ` ${x}`);
});
const slider = html("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smoothing, "aria-label": "smoothing of values of single steps" });
const output = html("output", {}, slider.value);
slider.addEventListener("input", () => {
  view.smoothing = Number(slider.value);
  output.textContent = slider.value;
  drawAll();
});
const tools = html("div", { class: "tools" },
  html("div", { role: "radiogroup", "aria-label": "x axis" }, "x axis", ...radios),
  html("label", {}, "smoothing of single steps", slider, output));
if (data.runs.length > 1) {
  tools.append(html("div", { role: "group", "aria-label": "runs" }, ...data.runs.map((name, run) => {
    const dot = html("span", { class: "swatch", style: `background:var(--c${run % 8})` });
    return toggle(true, (on) => { view.runs[on ? "delete" : "add"](run); drawAll(); }, dot, name);
  })));
}
section.append(tools, html("div", { class: "grid" }, ...charts.map((chart) => chart.root)));
drawAll();
// A frame later, for drawing changes sizes again.
const observer = new ResizeObserver(() => requestAnimationFrame(() => {
  charts.filter((chart) => chart.width !== chart.wanted).forEach((chart) => chart.draw());
}));
charts.forEach((chart) => observer.observe(chart.root));
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
