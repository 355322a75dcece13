// The page: asks the server what its model is, builds an input and an output for it, and brings rows to the one and
// answers to the other.

import { ask, hasKey, latest, useKey } from "./api.js";
import { FileInput } from "./file.js";
import { columnsOf, examplesOf, inputFor } from "./inputs.js";
import { outputFor } from "./outputs.js";
import { lookOf, make, strangeness } from "./parts.js";
import { Path } from "./path.js";
import { Questions } from "./questions.js";
import { Restoring } from "./restoring.js";

const PAUSE = 120; // ms without a change before the server is asked
const LONGER = 300; // the same for the way along the field, which costs more

const at = (id) => document.getElementById(id);

function show(id, shown) {
  at(id).hidden = !shown;
}

// --- troubles -----------------------------------------------------------------------------------------------------

let again = start;
const open = new Map(); // from who asked in vain to what the server said

function trouble(who, error, retry) {
  open.set(who, error);
  again = retry;
  tell();
}

function calm(who) {
  open.delete(who);
  tell();
}

function tell() {
  const errors = [...open.values()];
  const locked = errors.some((error) => error.status === 401);
  if (locked && at("key").hidden) setTimeout(() => at("key-field").focus());
  show("key", locked);
  show("key-wrong", locked && hasKey());
  const others = errors.filter((error) => error.status !== 401);
  at("trouble-text").textContent = [...new Set(others.map((error) => error.message))].join(" ");
  show("trouble", others.length > 0);
}

at("again").addEventListener("click", () => again());
at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(at("key-field").value);
  again();
});

// --- the model ----------------------------------------------------------------------------------------------------

const TASKS = { classify: "classes", anomaly: "anomalies", multilabel: "labels" };

const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function sentence(about) {
  const [height, width] = about.image ?? [];
  const what = height ? `pictures of ${width} × ${height}` : `rows of ${count(columnsOf(about).length, "column")}`;
  const number = about.classes?.length ?? about.labels?.length;
  const of = about.target && about.task === "classify" ? `${about.target}, ` : "";
  const found = about.task === "anomaly" ? "anomalies" : `${of}${number} ${TASKS[about.task] ?? "answers"}`;
  const size = count(about.n_parameters, "parameter");
  return `Predicts ${found}, from ${what}. ${about.estimator}, ${size}, energate ${about.energate}.`;
}

// Cells of a table as the numbers that the model sees, in the order of its features; they are those of `Columns`.
function asNumbers(about, row) {
  return columnsOf(about).flatMap((column, i) => {
    if (!column.categories) return [row[i] ?? column.fill];
    return column.categories.map((category) => Number(category === (row[i] === null ? null : String(row[i]))));
  });
}

// How much columns usually differ: what the server says, or the examples; or else by their own values.
function sizesOf(about, examples) {
  if (about.sizes) return () => about.sizes;
  if (examples.length < 3) return (cells) => cells.map((value) => Math.abs(value) || 1);
  const sizes = examples[0].map((_, i) => {
    const values = examples.map((row) => row[i]);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
    return Math.sqrt(variance) || Math.abs(mean) || 1;
  });
  return () => sizes;
}

async function start() {
  let about;
  try {
    about = await ask("model");
  } catch (error) {
    at("about").textContent = "";
    trouble("model", error, start);
    return;
  }
  calm("model");
  at("about").textContent = sentence(about);
  const name = about.name?.replace(/\.zip$/, "");
  at("name").textContent = name ?? "energate";
  document.title = name ? `${name} · energate` : "energate";
  if (!(about.task in TASKS)) {
    const text = `This page has no form for the task "${about.task}"; the server's other answers work.`;
    trouble("task", new Error(text), start);
    return;
  }
  build(about);
}

function build(about) {
  const examples = examplesOf(about).map((row) => asNumbers(about, row));
  const sizes = sizesOf(about, examples);
  const question = latest("explain", PAUSE);
  const way = latest("trajectory", LONGER);
  let current = null;
  let given = null;

  const look = lookOf(about, examplesOf(about));
  const can = (name) => about.operations.includes(name);
  const input = inputFor(about, look, (row) => take(row));
  const scores = about.has_base === false ? scoresInput() : null;
  const output = outputFor(about, look);
  const asked = output.question ? latest(output.question, PAUSE) : question;
  const path = can("trajectory") ? new Path(about, look, (body) => carefully("path", () => way(body))) : null;
  const others = { denoise: latest("denoise", LONGER), inpaint: latest("inpaint", 0) };
  const restored = (name, body) => carefully(name, () => others[name](body));
  const restoring = look && can("denoise") && can("inpaint") ? new Restoring(about, look, restored) : null;
  const queues = new Map();
  const inTurn = (name, body) => {
    if (!queues.has(name)) queues.set(name, latest(name, LONGER));
    return queues.get(name)(body);
  };
  const questions = look || scores ? null : new Questions(about, inTurn);
  const file = look || scores || !can("predict") ? null : new FileInput(about, (name, body) => ask(name, body));

  at("input-title").textContent = input.title;
  at("input-body").replaceChildren(input.element, ...(scores ? [scores.title, scores.element] : []));
  at("results-body").replaceChildren(output.element);
  at("path-body").replaceChildren(...(path ? [path.element] : []));
  at("restore-body").replaceChildren(...(restoring ? [restoring.element] : []));
  at("questions-body").replaceChildren(...(questions ? [questions.element] : []));
  at("file-body").replaceChildren(...(file ? [file.element] : []));
  show("file", Boolean(file));
  at("main").classList.toggle("pictures", Boolean(about.image));
  show("main", true);
  scores?.begin();
  input.begin();

  // The base of this refiner is not in its files: its scores come with the row.
  function scoresInput() {
    const names = about.labels ?? about.classes;
    const columns = { inputs: names.map((name) => ({ name: String(name), fill: null })) };
    const form = inputFor({ columns, image: null, examples: [] }, null, (values) => {
      given = values;
      if (current) take(current);
    });
    return Object.assign(form, { title: make("h3", {}, `Scores of ${about.base ?? "the base"}`) });
  }

  async function carefully(who, work) {
    try {
      const answer = await work();
      calm(who);
      return answer;
    } catch (error) {
      trouble(who, error, () => take(current));
      return null;
    }
  }

  async function take(row) {
    current = row;
    show("path", Boolean(path && row));
    show("restore", Boolean(restoring && row));
    show("questions", Boolean(questions?.any && row));
    at("results-body").hidden = row === null || Boolean(scores && given === null);
    if (row === null || (scores && given === null)) {
      at("verdict").textContent = about.image ? "Nothing drawn yet." : "";
      at("strange").textContent = "";
      path?.forget();
      return;
    }
    const cells = asNumbers(about, row);
    path?.from(row, sizes(cells));
    restoring?.from(row);
    questions?.from(row);
    at("results").setAttribute("aria-busy", "true");
    const answer = await carefully("row", () => asked(scores ? { rows: [row], scores: [given] } : { rows: [row] }));
    if (current !== row) return; // another row came in the meantime, and its answer will
    at("results").removeAttribute("aria-busy");
    if (!answer) return;
    const seen = answer.seen?.[0] ?? cells; // in the columns that reconstructions have
    at("verdict").textContent = output.show(answer, { cells: seen, sizes: sizes(seen) });
    const judged = strangeness(answer.p_value?.[0], look ? "pictures" : "rows");
    at("strange").textContent = judged?.text ?? "";
    at("strange").classList.toggle("bad", Boolean(judged?.strange));
  }
}

start();
