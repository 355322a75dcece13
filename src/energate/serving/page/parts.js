// Small pieces of the page: elements, bars, pictures, a line chart.

const GROUND = 0.35; // of the pixels, that nobody has drawn on
const [STRANGE, UNUSUAL] = [0.01, 0.05]; // p-values up to which a row is called so

export function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

let nextId = 0;
export function freshId(word) {
  nextId += 1;
  return `${word}-${nextId}`;
}

// A control and its label, side by side or one below the other.
export function labelled(text, control, kind) {
  control.id ||= freshId("control");
  return make("div", { class: kind }, make("label", { for: control.id }, text), control);
}

export function number(value) {
  if (value === null || value === undefined) return "–"; // JSON has no infinite numbers
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value).replace("-", "−");
  const size = Math.abs(value);
  if (size < 1e-12) return "0"; // what rounding leaves of it
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("-", "−");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toFixed(digits).replace("-", "−");
}

// A number among others that differ by `span` at most: with the digits in which they differ.
export function among(value, span) {
  if (!(span > 0) || value === null || Math.abs(value) >= 1e5) return number(value);
  return value.toFixed(Math.max(0, Math.min(6, 2 - Math.ceil(Math.log10(span))))).replace("-", "−");
}

export function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  if (share > 0.999 && share < 1) return "> 99.9 %";
  return `${(100 * share).toFixed(1)} %`;
}

// How strange a row is, in words; `p` is the share of rows held out that the model likes no more.
export function strangeness(p, rows = "rows") {
  if (p === undefined || p === null) return null;
  const share = p < 0.1 ? percent(p) : `${(100 * p).toFixed(0)} %`;
  const word = p <= STRANGE ? "Strange" : p <= UNUSUAL ? "Unusual" : "Usual";
  const text = `${word}, p = ${p.toPrecision(2)}: ${share} of the ${rows} held out are as strange, or stranger.`;
  return { strange: p <= STRANGE, text };
}

// A bar of a share of the cell's width, and its number; `mark` is a second share, drawn as a thin line.
export function bar(share, text, { kind = "", mark } = {}) {
  const fill = make("span", { class: `fill ${kind}`, hidden: share === 0 });
  fill.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  const track = make("span", { class: "track", "aria-hidden": "true" }, fill);
  if (mark !== undefined) {
    const line = make("span", { class: "mark" });
    line.style.left = `${100 * mark}%`;
    track.append(line);
  }
  return make("span", { class: "bar" }, track, make("span", { class: "number" }, text));
}

export function table(caption, headers, rows) {
  const head = make("tr", {}, ...headers.map((text) => make("th", { scope: "col" }, text)));
  const title = make("caption", { class: "hidden" }, caption);
  return make("table", {}, title, make("thead", {}, head), make("tbody", {}, ...rows));
}

// --- pictures ---------------------------------------------------------------------------------------------------

// How pictures of a model are shown, and whether somebody can draw them: `ink` is "high" or "low", the end of the range
// that a pen leaves behind, where much of the examples is ground; null for photographs, and for colours.
export function lookOf(about, examples) {
  if (!about.image) return null;
  const [low, high] = about.range;
  const [height, width, channels = 1] = about.image;
  const shares = examples.flatMap((row) => row.map((value) => (value - low) / (high - low || 1)));
  const ground = (isGround) => shares.filter(isGround).length >= GROUND * shares.length;
  const dark = ground((share) => share < 0.05); // also without any example
  const bright = ground((share) => share > 0.95);
  const ink = channels > 1 ? null : dark ? "high" : bright ? "low" : null;
  return { height, width, channels, low, high, ink };
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
}

// A row as colours from 0 to 255: ink on paper in the colours of the page, or black to white, or the colours it has.
function coloured(row, { width, height, channels, low, high, ink }) {
  const [paper, pen] = ink ? [colour("--paper-rgb"), colour("--ink-rgb")] : [[0, 0, 0], [255, 255, 255]];
  const found = new Uint8ClampedArray(4 * width * height).fill(255);
  for (let i = 0; i < width * height; i += 1) {
    for (let c = 0; c < 3; c += 1) {
      const value = row[channels * i + Math.min(c, channels - 1)];
      const part = Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
      found[4 * i + c] = paper[c] + (ink === "low" ? 1 - part : part) * (pen[c] - paper[c]);
    }
  }
  return found;
}

export class Picture {
  constructor(look, label, size = "") {
    const { width, height } = look;
    this.look = look;
    this.element = make("canvas", { class: `picture ${size}`, width, height, role: "img", "aria-label": label });
    this.element.style.aspectRatio = `${width} / ${height}`;
    this.row = null;
    onSchemeChange(() => this.row && this.show(this.row, this.hidden));
  }

  // `hidden` pixels, where it is given and true, are shown as unknown.
  show(row, hidden = null) {
    Object.assign(this, { row, hidden });
    const { width, height } = this.look;
    const image = new ImageData(coloured(row, this.look), width, height);
    hidden?.forEach((isHidden, i) => isHidden && image.data.set([...colour("--hole-rgb"), 255], 4 * i));
    this.element.getContext("2d").putImageData(image, 0, 0);
    return this;
  }
}

export function figure(picture, caption) {
  return make("figure", {}, picture.element, make("figcaption", {}, caption));
}

// Pictures take their colours from the style sheet when they are drawn: draw them again when it changes sides.
export function onSchemeChange(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

// --- a line chart -----------------------------------------------------------------------------------------------

const [CHART_WIDTH, CHART_HEIGHT, EDGE] = [320, 120, 8];

export class LineChart {
  constructor(label) {
    this.line = make("path", { class: "line", d: "" });
    this.dot = make("path", { class: "dot" }); // of no length, with a round end: stretching leaves it round
    this.high = make("span", { class: "axis high" });
    this.low = make("span", { class: "axis low" });
    const box = { viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: "none" };
    this.svg = make("svg", { ...box, role: "img", "aria-label": label }, this.line, this.dot);
    this.element = make("div", { class: "chart" }, this.high, this.svg, this.low);
    this.label = label;
    this.values = [];
  }

  show(values) {
    this.values = values;
    const [low, high] = [Math.min(...values), Math.max(...values)];
    this.at = (i) => [
      EDGE + ((CHART_WIDTH - 2 * EDGE) * i) / Math.max(1, values.length - 1),
      CHART_HEIGHT - EDGE - ((CHART_HEIGHT - 2 * EDGE) * (values[i] - low)) / (high - low || 1),
    ];
    const corner = (_, i) => `${i ? "L" : "M"}${this.at(i).map((x) => x.toFixed(1)).join(" ")}`;
    this.line.setAttribute("d", values.map(corner).join(""));
    this.high.textContent = among(high, high - low);
    this.low.textContent = among(low, high - low);
    this.svg.setAttribute("aria-label", `${this.label}: from ${number(values[0])} to ${number(values.at(-1))}`);
    this.moveTo(0);
  }

  moveTo(i) {
    const [x, y] = this.at(i);
    this.dot.setAttribute("d", `M${x.toFixed(1)} ${y.toFixed(1)}h0`);
  }
}
