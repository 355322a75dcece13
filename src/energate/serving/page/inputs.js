// Where a row comes from: a drawing or an example for pictures, a form for the columns of a table.
//
// An input calls `onRow` with the cells in the order of the model's columns, whenever they change.

import { formOf, Pad, rowOf } from "./drawing.js";
import { figure, freshId, labelled, make, number, onSchemeChange, Picture } from "./parts.js";

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

export function inputFor(about, onRow) {
  return about.image ? new DrawingInput(about, onRow) : new FormInput(about, onRow);
}

// --- pictures -----------------------------------------------------------------------------------------------------

class DrawingInput {
  title = "Draw, or take an example";

  constructor(about, onRow) {
    const examples = examplesOf(about);
    this.form = formOf(examples, about.image);
    this.range = [this.form.low, this.form.high];
    this.shape = about.image;
    this.onRow = onRow;
    this.pad = new Pad(about.image, (strokes) => {
      if (strokes.length) this.take(rowOf(strokes, this.shape, this.form));
      else this.wait();
    });
    this.seen = new Picture(about.image, this.range, "What the model sees", "seen");
    this.hint = make("p", { class: "pad-hint", "aria-hidden": "true" }, "draw here");
    const examplesTitle = freshId("examples");
    this.buttons = examples.map((row, i) => {
      const picture = new Picture(about.image, this.range, "").show(row);
      picture.element.setAttribute("aria-hidden", "true");
      onSchemeChange(() => picture.show(row));
      const names = { "aria-pressed": "false", "aria-label": `Example ${i + 1}` };
      const onclick = () => this.choose(i, row);
      return make("button", { type: "button", class: "example", ...names, onclick }, picture.element);
    });
    this.element = make(
      "div",
      { class: "drawing" },
      make("div", { class: "pad-frame" }, this.pad.element, this.hint),
      make(
        "div",
        { class: "beside-pad" },
        figure(this.seen, `what the model sees: ${about.image[1]} × ${about.image[0]}`),
        make(
          "div",
          { class: "line" },
          make("button", { type: "button", onclick: () => { this.pad.clear(); this.wait(); } }, "Clear"),
          make("button", { type: "button", onclick: () => this.pad.undo() }, "Undo"),
        ),
      ),
      ...(examples.length
        ? [
            make("h3", { id: examplesTitle }, "Examples"),
            make("div", { class: "examples", role: "group", "aria-labelledby": examplesTitle }, ...this.buttons),
          ]
        : []),
    );
    onSchemeChange(() => this.seen.row && this.seen.show(this.seen.row));
    this.begin = () => (examples.length ? this.choose(0, examples[0]) : this.wait());
  }

  choose(i, row) {
    this.pad.clear();
    this.take(row, i);
  }

  take(row, example) {
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === example)));
    this.hint.hidden = this.pad.strokes.length > 0;
    this.seen.show(row);
    this.onRow(row);
  }

  wait() {
    this.buttons.forEach((button) => button.setAttribute("aria-pressed", "false"));
    this.hint.hidden = false;
    this.seen.show(new Array(this.shape[0] * this.shape[1]).fill(this.form.low));
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
      if (!column.categories) input.value = row[i] ?? "";
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
