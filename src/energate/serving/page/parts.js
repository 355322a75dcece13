// Small pieces of the page: elements, bars, pictures, a line chart.

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

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
}

export class Picture {
  constructor([height, width], [low, high], label, size = "") {
    this.range = [low, high];
    this.element = make("canvas", { class: `picture ${size}`, width, height, role: "img", "aria-label": label });
    this.element.style.aspectRatio = `${width} / ${height}`;
    this.row = null;
  }

  show(row) {
    this.row = row;
    const [paper, ink] = [colour("--paper-rgb"), colour("--ink-rgb")];
    const [low, high] = this.range;
    const { width, height } = this.element;
    const context = this.element.getContext("2d");
    const image = context.createImageData(width, height);
    for (let i = 0; i < width * height; i += 1) {
      const share = Math.min(1, Math.max(0, (row[i] - low) / (high - low || 1)));
      for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = paper[c] + share * (ink[c] - paper[c]);
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
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
