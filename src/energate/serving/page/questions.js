// What an energy can be asked about a row of a table: which classes, why, what belongs in empty cells, what would change
// it.  Each part asks the server when a row comes, and is silent where the model cannot be asked.

import { columnsOf } from "./inputs.js";
import { bar, labelled, make, number, table } from "./parts.js";

const LEVELS = [0.01, 0.05, 0.1, 0.2];
const MOST_PARTS = 8;

export class Questions {
  constructor(about, ask) {
    Object.assign(this, { about, ask, columns: columnsOf(about) });
    const can = (name) => about.operations.includes(name);
    const classes = about.classes ?? [];
    this.parts = [];
    if (about.task === "classify" && can("predict")) this.add("Which classes can it be?", this.sets());
    if (can("attribute")) this.add("Why?", this.why());
    if (can("complete")) this.add("What belongs in the empty cells?", this.empty());
    if (can("counterfactual") && (classes.length > 1 || about.task === "anomaly")) {
      this.add(about.task === "anomaly" ? "What would make it normal?" : "What would change it?", this.change(classes));
    }
    this.element = make("div", {}, ...this.parts.flatMap(({ title, element }) => [make("h3", {}, title), element]));
  }

  get any() {
    return this.parts.length > 0;
  }

  add(title, { element, from }) {
    this.parts.push({ title, element, from });
  }

  from(row) {
    this.row = row;
    this.parts.forEach(({ from }) => from(row));
  }

  // A part of the panel: what the server answers is shown, and so is what it refuses, in its own words.
  part(name, body, show, ...controls) {
    const place = make("div", {});
    const from = async (row) => {
      const question = body(row);
      if (typeof question === "string") return place.replaceChildren(make("p", { class: "quiet" }, question));
      try {
        const answer = await this.ask(name, question);
        if (this.row === row) place.replaceChildren(...show(answer, row));
      } catch (error) {
        if (this.row === row) place.replaceChildren(make("p", { class: "quiet" }, error.message));
      }
      return undefined;
    };
    controls.forEach((control) => control.addEventListener("change", () => this.row && from(this.row)));
    return { element: make("div", { class: "question" }, ...controls.map((each) => each.closest("div")), place), from };
  }

  // --- the questions ----------------------------------------------------------------------------------------------

  sets() {
    const option = (level) => make("option", { value: level, selected: level === 0.1 }, `${100 * level} %`);
    const level = make("select", {}, ...LEVELS.map(option));
    labelled("Wrong at most in", level, "chooser");
    const show = (answer) => {
      const names = this.about.classes.filter((_, k) => answer.sets[0][k]).map(String);
      const said = names.length ? names.join(" or ") : "none of them: no class fits the row";
      return [make("p", { class: "said" }, said)];
    };
    return this.part("predict", (row) => ({ rows: [row], alpha: Number(level.value) }), show, level);
  }

  why() {
    const show = ({ parts: [parts], total: [total] }) => {
      const names = this.about.feature_names ?? this.columns.map(({ name }) => name);
      const order = parts.map((_, i) => i).sort((i, j) => Math.abs(parts[j]) - Math.abs(parts[i]));
      const most = Math.max(...parts.map(Math.abs), 1e-12);
      const line = (name, part) =>
        make(
          "tr",
          {},
          make("th", { scope: "row" }, name),
          make("td", { class: "wide" }, bar(Math.abs(part) / most, signed(part), { kind: part > 0 ? "up" : "down" })),
        );
      const rows = order.slice(0, MOST_PARTS).map((i) => line(names[i], parts[i]));
      const rest = order.slice(MOST_PARTS).reduce((sum, i) => sum + parts[i], 0);
      if (order.length > MOST_PARTS) rows.push(line(`${order.length - MOST_PARTS} others`, rest));
      const text = `They add up to ${signed(total)} nats: how much more the model likes this row than the middle of all columns.`;
      return [table("What each column adds", ["column", "adds, in nats"], rows), make("p", { class: "quiet" }, text)];
    };
    return this.part("attribute", (row) => ({ rows: [row] }), show);
  }

  empty() {
    const show = ({ rows: [filled] }, row) => {
      const places = row.flatMap((cell, i) => (cell === null ? [i] : []));
      const cells = places.map((i) =>
        make("tr", {}, make("th", { scope: "row" }, this.columns[i].name), make("td", { class: "value" }, cell(filled[i]))),
      );
      return [table("Cells that were empty", ["column", "belongs there"], cells)];
    };
    const question = (row) => (row.includes(null) ? { rows: [row] } : "No cell is empty. Leave one empty to see.");
    return this.part("complete", question, show);
  }

  change(classes) {
    const option = (name, k) => make("option", { value: k }, String(name));
    const wanted = make("select", {}, ...classes.map(option));
    labelled("To be", wanted, "chooser");
    const show = (answer) => {
      if (!answer.found) return [make("p", { class: "quiet" }, "Nothing within the range of the data would.")];
      const places = answer.changed.flatMap((isChanged, i) => (isChanged ? [i] : []));
      if (!places.length) return [make("p", { class: "quiet" }, "It is so already.")];
      const cells = places.map((i) =>
        make(
          "tr",
          {},
          make("th", { scope: "row" }, this.columns[i].name),
          make("td", { class: "value" }, cell(answer.from[i])),
          make("td", { class: "value" }, cell(answer.row[i])),
        ),
      );
      return [table("Cells that would change", ["column", "now", "then"], cells)];
    };
    const target = () => (classes.length ? { target: classes[Number(wanted.value)] } : {});
    const body = (row) => ({ row, ...target() });
    return classes.length ? this.part("counterfactual", body, show, wanted) : this.part("counterfactual", body, show);
  }
}

function cell(value) {
  return typeof value === "number" ? number(value) : String(value ?? "–");
}

function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}
