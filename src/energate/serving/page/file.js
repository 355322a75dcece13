// Rows of a CSV file: read here, asked of the server some at a time, and given back with new columns.

import { columnsOf } from "./inputs.js";
import { freshId, labelled, make, number, percent, table } from "./parts.js";

const SHOWN = 10; // rows on the page
const CELLS = 20_000; // numbers in one request
const MISSING = new Set(["", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null"]);

// The lines of a file, each a list of cells; quotes as RFC 4180 has them, and the separator that the first line shows.
export function parse(text) {
  const [first] = text.split(/\r?\n/, 1);
  const count = (mark) => first.split(mark).length;
  const separator = [",", ";", "\t"].reduce((best, mark) => (count(mark) > count(best) ? mark : best));
  const lines = [];
  let [cells, cell, quoted] = [[], "", false];
  const endCell = () => {
    cells.push(cell);
    cell = "";
  };
  const endLine = () => {
    endCell();
    if (cells.length > 1 || cells[0] !== "") lines.push(cells);
    cells = [];
  };
  for (let i = 0; i < text.length; i += 1) {
    const mark = text[i];
    if (quoted && mark === '"' && text[i + 1] === '"') {
      cell += '"';
      i += 1;
    } else if (mark === '"') quoted = !quoted && cell === "" ? true : quoted ? false : quoted;
    else if (!quoted && mark === separator) endCell();
    else if (!quoted && (mark === "\n" || mark === "\r")) {
      if (mark === "\n" || text[i + 1] !== "\n") endLine();
    } else cell += mark;
  }
  if (cell !== "" || cells.length) endLine();
  return { separator, lines };
}

function written(cell) {
  const text = cell === null || cell === undefined ? "" : String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// A file as rows that the server takes: the cells of the model's columns, by name.
export function rowsOf(text, columns) {
  const { lines } = parse(text.replace(/^\ufeff/, ""));
  if (lines.length < 2) throw new Error("The file must have the names of its columns in the first line, and rows below.");
  const names = lines[0].map((name) => name.trim());
  const short = lines.findIndex((line) => line.length !== names.length);
  if (short > 0) throw new Error(`Row ${short} has ${lines[short].length} cells; the first line has ${names.length} names.`);
  const lacking = columns.filter(({ name }) => !names.includes(name)).map(({ name }) => name);
  if (lacking.length) throw new Error(`The file lacks the columns ${lacking.slice(0, 5).join(", ")}.`);
  const places = columns.map((column) => [column, names.indexOf(column.name)]);
  const rows = lines.slice(1).map((line, i) => places.map(([column, place]) => cellOf(column, line[place].trim(), i)));
  return { names, lines: lines.slice(1), rows };
}

function cellOf(column, text, i) {
  if (MISSING.has(text)) return null;
  if (column.categories) return text;
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error(`Row ${i + 1}: ${column.name} must be a number; it is ${text.slice(0, 40)}.`);
  return value;
}

// New columns of the answers to `predict`, by their names.
function newColumns(about, answers) {
  const names = (about.labels ?? about.classes ?? []).map(String);
  const all = (key) => answers.flatMap((answer) => answer[key]);
  const found = {};
  const predictions = all("predictions");
  if (Array.isArray(predictions[0])) names.forEach((name, k) => (found[`predicted_${name}`] = predictions.map((row) => Number(row[k]))));
  else found.prediction = predictions;
  if (answers[0].probabilities) names.forEach((name, k) => (found[`p_${name}`] = all("probabilities").map((row) => row[k])));
  if (answers[0].p_value) found.p_value = all("p_value");
  return found;
}

export class FileInput {
  constructor(about, ask) {
    Object.assign(this, { about, ask, columns: columnsOf(about) });
    const onchange = async () => {
      await this.take(control.files[0]);
      control.value = ""; // so that the same file may come again, changed
    };
    const control = make("input", { type: "file", accept: ".csv,.tsv,.txt,text/csv", onchange });
    this.said = make("p", { class: "quiet", role: "status", id: freshId("file") });
    this.problem = make("p", { class: "bad", role: "alert", hidden: true });
    this.found = make("div", { class: "scroll" });
    this.link = make("a", { class: "download", hidden: true });
    this.more = make("div", {});
    const columns = this.columns.map(({ name }) => name);
    const hint = `A CSV file with the columns ${columns.slice(0, 8).join(", ")}${columns.length > 8 ? " …" : ""}. Others are carried along.`;
    this.element = make(
      "div",
      {},
      make("p", { class: "quiet" }, hint),
      labelled("CSV file", control, "field"),
      this.problem,
      this.said,
      this.found,
      this.link,
      this.more,
    );
  }

  async take(file) {
    if (!file) return;
    this.problem.hidden = this.link.hidden = true;
    this.found.replaceChildren();
    this.more.replaceChildren();
    this.element.setAttribute("aria-busy", "true");
    try {
      const read = rowsOf(await file.text(), this.columns);
      const answers = [];
      const size = Math.max(1, Math.min(this.about.limits.rows, Math.floor(CELLS / this.columns.length)));
      for (let start = 0; start < read.rows.length; start += size) {
        this.said.textContent = `${start.toLocaleString("en")} of ${read.rows.length.toLocaleString("en")} rows …`;
        const answer = await this.ask("predict", { rows: read.rows.slice(start, start + size) });
        answers.push(answer);
      }
      this.show(file.name, read, newColumns(this.about, answers));
      this.more.replaceChildren(...(await this.drifted(read)), ...this.suspicious(read, answers));
    } catch (error) {
      this.said.textContent = "";
      this.problem.textContent = error.message;
      this.problem.hidden = false;
    } finally {
      this.element.removeAttribute("aria-busy");
    }
  }

  // Whether the rows come from elsewhere than those that the model knows.
  async drifted({ rows }) {
    if (!this.about.operations.includes("drift") || rows.length < 2) return [];
    const some = rows.slice(0, this.about.limits.rows);
    const { drifted, p_value: p, columns, moved, held_out: heldOut } = await this.ask("drift", { rows: some });
    const names = this.about.feature_names ?? this.columns.map(({ name }) => name);
    const most = columns.slice(0, 3).map((i) => `${names[i]} (${moved[i] > 0 ? "+" : ""}${number(moved[i])} nats)`);
    const said = drifted
      ? `Yes, p = ${p.toPrecision(2)}. Most of it is in ${most.join(", ")}.`
      : `Not that ${some.length.toLocaleString("en")} rows show it, p = ${p.toPrecision(2)}.`;
    const beside = `Energies of these rows beside those of ${heldOut.toLocaleString("en")} held out; at 5 % false alarms.`;
    const title = make("h3", {}, "Has the data changed?");
    return [title, make("p", { class: drifted ? "said bad" : "said" }, said), make("p", { class: "quiet" }, beside)];
  }

  // Rows whose class, if the file has it, the model finds the least probable beside another.
  suspicious({ names, lines }, answers) {
    const { target, classes } = this.about;
    if (!target || !classes || !names.includes(target) || !answers[0].probabilities) return [];
    const place = names.indexOf(target);
    const probabilities = answers.flatMap((answer) => answer.probabilities);
    const found = lines.flatMap((line, i) => {
      const given = classes.findIndex((name) => String(name) === line[place].trim());
      const best = probabilities[i].indexOf(Math.max(...probabilities[i]));
      if (given < 0 || given === best) return [];
      return [{ i, given, best, odds: Math.log(probabilities[i][best] / Math.max(probabilities[i][given], 1e-300)) }];
    });
    found.sort((a, b) => b.odds - a.odds);
    const rows = found.slice(0, SHOWN).map(({ i, given, best, odds }) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, String(i + 1)),
        make("td", {}, String(classes[given])),
        make("td", {}, String(classes[best])),
        make("td", { class: "value" }, number(odds)),
      ),
    );
    const known = lines.filter((line) => classes.some((name) => String(name) === line[place].trim())).length;
    const note =
      `The model says another ${target} for ${found.length} of ${known} rows. ` +
      "Rows that it was trained on look better than they are: energate audit fits without them.";
    const headers = ["row", "in the file", "rather", "log-odds"];
    const title = make("h3", {}, `Which ${target} looks wrong?`);
    return [title, ...(rows.length ? [table("Suspicious labels", headers, rows)] : []), make("p", { class: "quiet" }, note)];
  }

  show(name, { names, lines }, columns) {
    const strange = columns.p_value?.filter((p) => p <= 0.01).length;
    const judged = strange === undefined ? "" : `; ${strange.toLocaleString("en")} of them strange (p_value at most 0.01)`;
    this.said.textContent = `${lines.length.toLocaleString("en")} rows of ${name}${judged}.`;
    const fresh = Object.keys(columns);
    const clash = fresh.some((each) => names.includes(each)) ? "new_" : "";
    const all = [...names, ...fresh.map((each) => clash + each)];
    const text = [all, ...lines.map((line, i) => [...line, ...fresh.map((each) => columns[each][i])])];
    const content = new Blob([text.map((line) => line.map(written).join(",")).join("\n") + "\n"], { type: "text/csv" });
    URL.revokeObjectURL(this.link.href);
    Object.assign(this.link, { href: URL.createObjectURL(content), hidden: false });
    this.link.download = `${name.replace(/\.[^.]*$/, "")}-predicted.csv`;
    this.link.textContent = `Download ${this.link.download}`;
    const shown = lines.slice(0, SHOWN).map((line, i) => {
      const first = fresh.slice(0, 8).map((each) => make("td", { class: "value" }, cellText(each, columns[each][i])));
      const rest = line.slice(0, 6).map((cell) => make("td", {}, cell));
      return make("tr", columns.p_value?.[i] <= 0.01 ? { class: "strange" } : {}, make("th", { scope: "row" }, String(i + 1)), ...first, ...rest);
    });
    const headers = ["row", ...fresh.slice(0, 8), ...names.slice(0, 6)];
    this.found.replaceChildren(table(`The first rows of ${name} with predictions`, headers, shown));
  }
}

function cellText(name, value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return name.startsWith("p_") && name !== "p_value" ? percent(value) : number(value);
}
