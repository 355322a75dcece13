// Where a row comes from: a drawing or an example for pictures, a form for the columns of a table.
//
// An input calls `onRow` with the cells in the order of the model's columns, whenever they change.

import { formOf, Pad, rowOf } from "./drawing.js";
import { figure, freshId, labelled, make, number, Picture } from "./parts.js";

const MANY = 60; // columns; more than these are one field of text

// The columns as the form shows them: a name, and `categories` or a `fill` value.
export function columnsOf(about) {
  if (about.columns) return about.columns.inputs;
  const names = about.feature_names ?? Array.from({ length: about.n_features }, (_, i) => `column ${i + 1}`);
  return names.map((name) => ({ name, fill: 0 }));
}

export function examplesOf(about) {
  const columns = columnsOf(about);
  return about.examples.map((row) => (Array.isArray(row) ? row : columns.map(({ name }) => row[name])));
}

export function inputFor(about, look, onRow) {
  return look ? new DrawingInput(about, look, onRow) : new FormInput(about, onRow);
}

// --- pictures -----------------------------------------------------------------------------------------------------

class DrawingInput {
  constructor(about, look, onRow) {
    const examples = examplesOf(about);
    Object.assign(this, { look, onRow, white: about.white });
    this.title = look.ink ? "Draw, or take an example" : "Take an example, or a file";
    this.seen = new Picture(look, "What the model sees", "seen");
    const drawn = look.ink ? this.drawing(examples) : [];
    const file = about.white ? [this.chooser()] : [];
    const examplesTitle = freshId("examples");
    this.buttons = examples.map((row, i) => {
      const picture = new Picture(look, "").show(row);
      picture.element.setAttribute("aria-hidden", "true");
      const names = { "aria-pressed": "false", "aria-label": `Example ${i + 1}` };
      const onclick = () => this.choose(row, i);
      return make("button", { type: "button", class: "example", ...names, onclick }, picture.element);
    });
    const size = `${look.width} × ${look.height}${look.channels > 1 ? " in colours" : ""}`;
    this.problem = make("p", { class: "bad", role: "alert", hidden: true });
    this.element = make(
      "div",
      { class: look.ink ? "drawing" : "drawing without-pad" },
      ...drawn,
      make("div", { class: "beside-pad" }, figure(this.seen, `what the model sees: ${size}`), ...this.tools()),
      ...(examples.length
        ? [
            make("h3", { id: examplesTitle }, "Examples"),
            make("div", { class: "examples", role: "group", "aria-labelledby": examplesTitle }, ...this.buttons),
          ]
        : []),
      ...file,
      this.problem,
    );
    this.begin = () => (examples.length ? this.choose(examples[0], 0) : this.wait());
  }

  drawing(examples) {
    this.form = formOf(examples, this.look);
    this.pad = new Pad(this.look, (strokes) => {
      if (strokes.length) this.take(rowOf(strokes, this.look, this.form));
      else this.wait();
    });
    this.hint = make("p", { class: "pad-hint", "aria-hidden": "true" }, "draw here");
    return [make("div", { class: "pad-frame" }, this.pad.element, this.hint)];
  }

  tools() {
    if (!this.pad) return [];
    const clear = () => {
      this.pad.clear();
      this.wait();
    };
    const buttons = [
      make("button", { type: "button", onclick: clear }, "Clear"),
      make("button", { type: "button", onclick: () => this.pad.undo() }, "Undo"),
    ];
    return [make("div", { class: "line" }, ...buttons)];
  }

  // Pixels of a file of the user's, at the size and on the scale that the model takes.
  chooser() {
    const onchange = async () => {
      const [file] = control.files;
      if (!file) return;
      try {
        this.choose(await this.read(file));
        this.problem.hidden = true;
      } catch {
        this.problem.textContent = `${file.name} is no picture that this browser can read.`;
        this.problem.hidden = false;
      }
    };
    const control = make("input", { type: "file", accept: "image/*", onchange });
    return labelled("A picture of your own", control, "field");
  }

  async read(file) {
    const { width, height, channels } = this.look;
    const bitmap = await createImageBitmap(file);
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.fillStyle = "white";
    context.fillRect(0, 0, width, height);
    Object.assign(context, { imageSmoothingEnabled: true, imageSmoothingQuality: "high" });
    context.drawImage(bitmap, 0, 0, width, height);
    const { data } = context.getImageData(0, 0, width, height);
    const row = [];
    for (let i = 0; i < data.length; i += 4) {
      const [red, green, blue] = data.slice(i, i + 3);
      const values = channels > 1 ? [red, green, blue] : [0.299 * red + 0.587 * green + 0.114 * blue];
      row.push(...values.map((value) => (value / 255) * this.white));
    }
    return row;
  }

  choose(row, i) {
    this.pad?.clear();
    this.take(row, i);
  }

  take(row, example) {
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === example)));
    if (this.pad) this.hint.hidden = this.pad.strokes.length > 0;
    this.seen.show(row);
    this.onRow(row);
  }

  wait() {
    this.buttons.forEach((button) => button.setAttribute("aria-pressed", "false"));
    if (this.pad) this.hint.hidden = false;
    const { width, height, channels, low } = this.look;
    this.seen.show(new Array(width * height * channels).fill(this.form?.paper ?? low));
    this.onRow(null);
  }
}

// --- tables -------------------------------------------------------------------------------------------------------

const MISSING = "(missing)";
const ANOTHER = "(another)";

class FormInput {
  title = "A row";

  constructor(about, onRow) {
    this.columns = columnsOf(about);
    this.onRow = onRow;
    const plain = this.columns.every((column) => !column.categories);
    this.fields = plain && this.columns.length > MANY ? [] : this.columns.map((column) => this.field(column));
    const examples = examplesOf(about);
    this.element = make("form", { onsubmit: (event) => event.preventDefault(), oninput: () => this.read() });
    if (examples.length) this.element.append(this.chooser(examples));
    if (this.fields.length) {
      this.element.append(make("div", { class: "fields" }, ...this.fields.map(({ element }) => element)));
    } else {
      this.text = make("textarea", { rows: 8, spellcheck: "false" });
      const wanted = `${this.columns.length} numbers, with commas or blanks between them`;
      this.element.append(labelled(wanted, this.text, "field"));
    }
    this.problem = make("p", { class: "bad", role: "alert", hidden: true });
    this.element.append(this.problem);
    this.begin = () => this.set(examples[0] ?? this.columns.map(ordinary));
  }

  field(column) {
    const hint = column.fill === null ? "" : `missing: ${number(column.fill)}`;
    const input = column.categories
      ? make("select", {}, ...this.options(column))
      : make("input", { type: "text", autocomplete: "off", placeholder: hint });
    return { column, input, element: labelled(column.name, input, "field") };
  }

  options({ categories }) {
    const choices = categories.map((category, i) => make("option", { value: i }, category ?? MISSING));
    return [...choices, make("option", { value: -1 }, ANOTHER)];
  }

  chooser(examples) {
    const select = make(
      "select",
      { onchange: () => select.value !== "" && this.set(examples[select.value]) },
      ...examples.map((_, i) => make("option", { value: i }, `example ${i + 1}`)),
      make("option", { value: "" }, "own values"),
    );
    this.chosen = select;
    return labelled("Start from", select, "chooser");
  }

  set(row) {
    if (this.text) this.text.value = row.join(", ");
    this.fields.forEach(({ column, input }, i) => {
      if (!column.categories) input.value = typeof row[i] === "number" ? Number(row[i].toPrecision(12)) : (row[i] ?? "");
      else input.value = column.categories.indexOf(row[i] === null ? null : String(row[i]));
    });
    this.read(true);
  }

  read(set = false) {
    if (!set && this.chosen && document.activeElement !== this.chosen) this.chosen.value = "";
    const wrong = [];
    const row = this.text ? this.text.value.split(/[\s,;]+/).filter(Boolean).map(asNumber) : this.fields.map(cell);
    row.forEach((value, i) => value === undefined && wrong.push(this.text ? `value ${i + 1}` : this.columns[i].name));
    let text = "";
    if (wrong.length) text = `Not a number: ${wrong.slice(0, 5).join(", ")}${wrong.length > 5 ? " …" : ""}.`;
    else if (row.length !== this.columns.length) {
      text = `The model takes ${this.columns.length} numbers; here are ${row.length}.`;
    }
    this.problem.textContent = text;
    this.problem.hidden = !text;
    this.onRow(text ? null : row);
  }
}

// What a field holds: null where it is empty and may be, undefined where it is wrong.
function cell({ column, input }) {
  if (column.categories) return input.value === "-1" ? ANOTHER : column.categories[input.value];
  const value = input.value.trim() === "" && column.fill !== null ? null : asNumber(input.value);
  input.setAttribute("aria-invalid", String(value === undefined));
  return value;
}

function asNumber(text) {
  const value = Number(text.trim().replace(",", ".").replace("−", "-"));
  return text.trim() === "" || !Number.isFinite(value) ? undefined : value;
}

function ordinary(column) {
  return column.categories ? column.categories[0] : (column.fill ?? 0);
}
