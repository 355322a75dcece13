// A pad to draw on, and the way from its strokes to a row of the model's pixels.
//
// Strokes are kept as lines and not as pixels: they are drawn anew at the model's size, in the form that its data has,
// as the example rows show it.  Digits of scikit-learn fill the whole height and all have about the same amount of ink,
// so the box and the width of the pen follow from the drawing, and not from how large somebody draws.  Where the
// examples themselves are of many sizes, a drawing is taken as it is.

import { make, median, onSchemeChange } from "./parts.js";

const FINE = 8; // sub-pixels along a side of a pixel, whose mean is the pixel; fewer for large pictures
const MOST = 256; // sub-pixels along a side of the picture
const MUCH_SMALLER = 0.7;
const PEN = 1 / 18; // on the pad, as a share of its width
const STEP = 0.02; // how far an arrow key moves the pen

// --- what the data looks like -------------------------------------------------------------------------------------

// Whether values are whole numbers, whether sizes differ, the box that ink usually fills and the usual amount of ink, of
// example rows; without any, a drawing is taken as it is.  The range is the model's: see `lookOf`.
export function formOf(examples, { width, low, high, ink: end }) {
  const paper = end === "low" ? high : low;
  const pen = end === "low" ? low : high;
  if (!examples.length) return { paper, pen, whole: false, free: true };
  const share = (value) => (value - paper) / (pen - paper || 1);
  const tall = [];
  const wide = [];
  const ink = [];
  for (const row of examples) {
    const rows = new Set();
    const columns = new Set();
    row.forEach((value, i) => {
      if (share(value) <= 0.1) return;
      rows.add(Math.floor(i / width));
      columns.add(i % width);
    });
    tall.push(Math.max(...rows) - Math.min(...rows) + 1);
    wide.push(Math.max(...columns) - Math.min(...columns) + 1);
    ink.push(row.reduce((sum, value) => sum + share(value), 0));
  }
  const whole = examples.every((row) => row.every(Number.isInteger));
  const free = tall.some((size) => size < MUCH_SMALLER * Math.max(...tall)); // also for an example without ink
  return { paper, pen, whole, free, tall: median(tall), wide: Math.max(...wide), ink: median(ink) };
}

// --- from strokes to pixels ---------------------------------------------------------------------------------------

function trace(context, strokes, place) {
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach((point, i) => {
      const [x, y] = place(point);
      if (i === 0) context.moveTo(x, y);
      context.lineTo(x, y); // also for the first: a tap is a dot
    });
    context.stroke();
  }
}

function box(strokes) {
  const [xs, ys] = [0, 1].map((axis) => strokes.flatMap((stroke) => stroke.map((point) => point[axis])));
  return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
}

// The share of ink in every pixel, for a pen of a width in pixels.
function rendered(strokes, { height, width }, form, pen) {
  const { left, right, top, bottom } = box(strokes);
  const [w, h] = [right - left, bottom - top];
  const small = 0.05; // less than this share of the pad counts as this much: a dot does not become a blot
  const down = Math.max(1, form.tall - pen) / Math.max(h, small);
  const across = Math.min(down, Math.max(1, form.wide - pen) / Math.max(w, small)); // too wide: squeezed
  const scale = h < w / 2 ? [across, Math.min(down, across)] : [across, down]; // a flat line stays flat
  const [middle, target] = [[(left + right) / 2, (top + bottom) / 2], [width / 2, height / 2]];
  const fitted = (point) => point.map((x, axis) => target[axis] + scale[axis] * (x - middle[axis]));
  const place = form.free ? ([x, y]) => [width * x, width * y] : fitted;
  const fine = Math.max(1, Math.min(FINE, Math.floor(MOST / Math.max(width, height))));
  const canvas = new OffscreenCanvas(width * fine, height * fine);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  Object.assign(context, { lineCap: "round", lineJoin: "round", lineWidth: pen * fine });
  trace(context, strokes, (point) => place(point).map((x) => fine * x));
  const alpha = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const row = new Array(width * height).fill(0);
  for (let i = 0; i < canvas.width * canvas.height; i += 1) {
    const [y, x] = [Math.floor(i / canvas.width / fine), Math.floor((i % canvas.width) / fine)];
    row[y * width + x] += alpha[4 * i + 3] / 255 / (fine * fine);
  }
  return row;
}

export function rowOf(strokes, look, form) {
  const row = form.free ? rendered(strokes, look, form, Math.max(1, PEN * look.width)) : inked(strokes, look, form);
  const values = row.map((share) => form.paper + share * (form.pen - form.paper));
  return form.whole ? values.map(Math.round) : values;
}

// With the pen that gives the usual amount of ink; a wider one gives more, so halving finds it.
function inked(strokes, look, form) {
  let [thin, thick] = [0.3, Math.max(1, look.width / 2.5)];
  let row = [];
  for (let i = 0; i < 9; i += 1) {
    const pen = (thin + thick) / 2;
    row = rendered(strokes, look, form, pen);
    if (row.reduce((sum, share) => sum + share, 0) < form.ink) thin = pen;
    else thick = pen;
  }
  return row;
}

// --- the pad --------------------------------------------------------------------------------------------------------

export class Pad {
  constructor({ height, width }, onChange) {
    this.onChange = onChange;
    this.strokes = [];
    this.pen = null; // the keyboard's: where it is, and whether it draws
    this.element = make("canvas", {
      class: "pad",
      tabindex: "0",
      role: "img",
      "aria-label":
        "Drawing pad. Draw with mouse or finger; or move with the arrow keys, space puts the pen down or up.",
      onpointerdown: (event) => this.start(event),
      onpointermove: (event) => this.move(event),
      onpointerup: () => this.end(),
      onpointercancel: () => this.end(),
      onkeydown: (event) => this.press(event),
      onblur: () => { this.pen = null; this.draw(); },
    });
    this.ratio = height / width;
    this.element.style.aspectRatio = `${width} / ${height}`;
    new ResizeObserver(() => this.draw()).observe(this.element);
    onSchemeChange(() => this.draw());
  }

  place(event) {
    const { left, top, width } = this.element.getBoundingClientRect();
    return [(event.clientX - left) / width, (event.clientY - top) / width];
  }

  start(event) {
    if (event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId);
    this.pen = null;
    this.drawing = [this.place(event)];
    this.strokes.push(this.drawing);
    this.changed();
  }

  move(event) {
    if (!this.drawing) return;
    const events = event.getCoalescedEvents?.() ?? [];
    this.drawing.push(...(events.length ? events : [event]).map((each) => this.place(each)));
    this.changed();
  }

  end() {
    this.drawing = null;
  }

  press(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way && event.key !== " ") return;
    event.preventDefault();
    this.pen ??= { at: [0.5, 0.2 * this.ratio], down: false };
    if (event.key === " ") {
      this.pen.down = !this.pen.down;
      if (this.pen.down) this.strokes.push([[...this.pen.at]]);
    } else {
      const edges = [1, this.ratio];
      this.pen.at = this.pen.at.map((x, axis) => Math.min(edges[axis], Math.max(0, x + STEP * way[axis])));
      if (this.pen.down) this.strokes.at(-1).push([...this.pen.at]);
    }
    if (this.pen.down) this.changed();
    else this.draw();
  }

  clear() {
    this.strokes = [];
    this.draw();
  }

  undo() {
    if (!this.strokes.length) return;
    this.strokes.pop();
    this.changed();
  }

  changed() {
    this.draw();
    this.onChange(this.strokes);
  }

  draw() {
    const dots = window.devicePixelRatio || 1;
    const width = Math.round(this.element.clientWidth * dots);
    if (!width) return;
    this.element.width = width;
    this.element.height = Math.round(width * this.ratio);
    const context = this.element.getContext("2d");
    const style = getComputedStyle(this.element);
    Object.assign(context, { lineCap: "round", lineJoin: "round", lineWidth: PEN * width, strokeStyle: style.color });
    trace(context, this.strokes, ([x, y]) => [x * width, y * width]);
    if (!this.pen) return;
    context.beginPath();
    context.arc(this.pen.at[0] * width, this.pen.at[1] * width, (PEN * width) / 2, 0, 2 * Math.PI);
    context.fillStyle = style.getPropertyValue("--accent");
    context.fill();
  }
}
