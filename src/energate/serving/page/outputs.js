// What the model says of a row: classes with their energies, a score against a threshold, or labels before and after.
//
// An output takes the answer of /explain for one row (`show`), and gives the sentence for the verdict.

import { among, bar, freshId, labelled, make, number, percent, Picture, strangeness, table } from "./parts.js";

const MOST_CHANGED = 8;
const MOST_LABELS = 12;
const NATS = 10; // an energy this far below the best: a class that is 22,000 times less probable has no bar

export function outputFor(about, look) {
  if (about.operations && !about.operations.includes("explain")) return new ProbabilitiesOutput(about);
  if (about.estimator === "EnergyRefiner") return new RefinedOutput(about);
  return about.task === "anomaly" ? new AnomalyOutput(about, look) : new ClassesOutput(about, look);
}

// Rows in which columns differ most from what the model makes of them, by the sizes that the columns usually have.
// `end` is a row by which they are chosen and measured, where `other` is only on the way to it.
export function changes(names, row, other, sizes, caption, headers, end = other) {
  const away = end.map((value, i) => Math.abs(value - row[i]) / sizes[i]);
  const order = away.map((_, i) => i).sort((i, j) => away[j] - away[i]).slice(0, MOST_CHANGED);
  const largest = Math.max(...order.map((i) => away[i]), 1e-12);
  const by = row.map((value, i) => (other[i] - value) / sizes[i]);
  const rows = order.map((i) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, names[i]),
      make("td", { class: "value" }, number(row[i])),
      make("td", { class: "value" }, number(other[i])),
      make("td", { class: "wide" }, bar(Math.abs(by[i]) / largest, signed(other[i] - row[i]), { kind: way(by[i]) })),
    ),
  );
  const legend = "Bars: changes by what each column usually differs; green is up, orange down.";
  return make("div", {}, table(caption, ["column", ...headers, "change"], rows), make("p", { class: "quiet" }, legend));
}

function way(change) {
  return change > 0 ? "up" : "down";
}

function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}

function rather(about, cells, reconstruction, sizes) {
  const caption = "Columns that the reconstruction changes most";
  return changes(namesOf(about), cells, reconstruction, sizes, caption, ["value", "rather"]);
}

export function namesOf(about) {
  return about.seen_names ?? about.feature_names ?? Array.from({ length: about.n_features }, (_, i) => `column ${i + 1}`);
}

// The share of what the classes change in a row that is common to all of them.
function shared(cells, reconstructions, sizes) {
  const changes = reconstructions.map((made) => made.map((value, i) => (value - cells[i]) / (sizes?.[i] ?? 1)));
  const square = (values) => values.reduce((sum, value) => sum + value * value, 0);
  const mean = cells.map((_, i) => changes.reduce((sum, change) => sum + change[i], 0) / changes.length);
  return square(mean) / (changes.reduce((sum, change) => sum + square(change), 0) / changes.length || 1);
}

function sharedNote(cells, reconstructions, sizes) {
  const share = cells ? shared(cells, reconstructions, sizes) : 0;
  const told = `${Math.round(100 * share)} % of what the classes change here is common to all of them`;
  return share < 0.75 ? "" : `${told}, and tells little of each: go by the energies.`;
}

// --- classes ------------------------------------------------------------------------------------------------------

class ClassesOutput {
  constructor(about, look) {
    this.about = about;
    this.element = make("div", { class: look ? "with-pictures" : "" });
    const picture = (name) => new Picture(look, `Reconstruction by the model of ${name}`, "small");
    this.pictures = look && about.classes.map(picture);
    this.changed = make("div", {});
    this.note = make("p", { class: "quiet" });
    this.liking = make("p", { class: "quiet" });
  }

  show(answer, context) {
    const [energies, probabilities] = [answer.energies[0], answer.probabilities[0]];
    const [low, high] = [Math.min(...energies), Math.max(...energies)];
    const best = probabilities.indexOf(Math.max(...probabilities));
    const { classes } = this.about;
    const span = Math.max(NATS, high - low);
    const rows = classes.map((name, k) => {
      const share = 1 - (high - energies[k]) / span;
      const cells = [
        make("th", { scope: "row" }, String(name)),
        make("td", { class: "wide" }, bar(probabilities[k], percent(probabilities[k]))),
        make("td", { class: "wide" }, bar(share, among(energies[k], high - low), { kind: "energy" })),
      ];
      if (this.pictures) cells.push(make("td", {}, this.pictures[k].show(answer.reconstructions[0][k]).element));
      return make("tr", k === best ? { class: "best" } : {}, ...cells);
    });
    const headers = ["class", "probability", "energy", ...(this.pictures ? ["reconstruction"] : [])];
    const common = sharedNote(context?.cells, answer.reconstructions[0], context?.sizes);
    this.note.textContent =
      "Energy: how much a class likes the row, in nats; higher is better. One nat more is 2.7 times the probability. " +
      `A bar is full at the best class and empty ${number(span)} nats below it.` +
      (this.pictures ? ` A reconstruction is what a class would rather see. ${common}` : "");
    this.liking.textContent = `All classes together like it by ${number(answer.liking[0])} nats.`;
    if (!this.pictures) this.showChanges(answer, best, context);
    const all = table("Classes, their probabilities and energies", headers, rows);
    this.element.replaceChildren(all, this.note, this.liking, this.changed);
    const said = `${this.about.target ?? "class"} ${classes[best]}`;
    const sure = percent(probabilities[best]);
    const isStrange = strangeness(answer.p_value?.[0])?.strange;
    return isStrange ? `unlike what the model knows; if anything, ${said} (${sure})` : `${said}, ${sure} probable`;
  }

  showChanges(answer, best, { cells, sizes }) {
    if (!cells) return;
    const option = (name, k) => make("option", { value: k, selected: k === best }, String(name));
    const select = make("select", { onchange: () => fill(Number(select.value)) }, ...this.about.classes.map(option));
    const place = make("div", {});
    const fill = (k) => place.replaceChildren(rather(this.about, cells, answer.reconstructions[0][k], sizes));
    fill(best);
    const title = make("h3", {}, "What a class would rather see");
    const common = make("p", { class: "quiet" }, sharedNote(cells, answer.reconstructions[0], sizes));
    this.changed.replaceChildren(title, labelled("Class", select, "chooser"), place, common);
  }
}

// --- anomalies ----------------------------------------------------------------------------------------------------

class AnomalyOutput {
  constructor(about, look) {
    this.about = about;
    this.picture = look && new Picture(look, "Reconstruction", "large");
    this.element = make("div", {});
  }

  show(answer, { cells, sizes }) {
    const [score, inlier, reconstruction] = [answer.scores[0], answer.is_inlier[0], answer.reconstructions[0][0]];
    const list = make(
      "dl",
      { class: "facts" },
      make("dt", {}, "Energy in nats, higher is better"),
      make("dd", {}, number(answer.energies[0])),
      make("dt", {}, "Threshold"),
      make("dd", {}, number(this.about.threshold)),
      make("dt", {}, "Score: energy above the threshold"),
      make("dd", { class: inlier ? "good" : "bad" }, signed(score)),
    );
    const shown = this.picture?.show(reconstruction).element ?? rather(this.about, cells, reconstruction, sizes);
    this.element.replaceChildren(list, make("h3", {}, "What the model would rather see"), shown);
    return inlier ? "normal: above the threshold" : "an anomaly: below the threshold";
  }
}

// --- labels, before and after ---------------------------------------------------------------------------------------

class RefinedOutput {
  constructor(about) {
    this.about = about;
    const named = (name) => (typeof name === "number" ? `label ${name + 1}` : name);
    this.names = about.labels?.map(named) ?? about.classes.map(String);
    this.all = this.names.length <= MOST_LABELS;
    const slider = freshId("step");
    this.slider = make("input", { id: slider, type: "range", min: 0, value: 0, oninput: () => this.draw() });
    this.where = make("output", { for: slider });
    const onclick = () => {
      this.all = this.more.hidden = true;
      this.draw();
    };
    this.more = make("button", { type: "button", hidden: this.all, onclick }, `All ${this.names.length} labels`);
    const headers = [about.labels ? "label" : "class", "base", "at this step"];
    this.table = table("Probabilities of the labels, from the base and refined", headers, []);
    this.element = make(
      "div",
      {},
      make("p", { class: "quiet" }, this.sentence()),
      make("div", { class: "line slide" }, make("label", { for: slider }, "Step"), this.slider, this.where),
      this.table,
      this.more,
    );
  }

  sentence() {
    const { base, verdict, method, gate } = this.about;
    if (gate === 0) return `Probabilities from ${base ?? "the base"}, which was kept as it is. ${verdict ?? ""}`;
    const ways = { sets: "over sets of labels seen in training", ascent: "uphill in the energy of the labels" };
    const how = `by going ${ways[method]}`;
    return `Probabilities from ${base ?? "the base"} (the thin lines), refined ${how}.${verdict ? ` ${verdict}` : ""}`;
  }

  show(answer) {
    this.steps = answer.steps.map((step) => step[0]);
    const last = this.steps.at(-1);
    const largest = last.map((p, i) => Math.max(p, this.steps[0][i]));
    this.order = largest.map((_, i) => i).sort((i, j) => largest[j] - largest[i]);
    this.slider.max = this.steps.length - 1;
    this.slider.value = this.steps.length - 1;
    this.draw();
    if (this.about.task !== "multilabel") return `${answer.predictions[0]}`;
    const found = this.names.filter((_, i) => answer.predictions[0][i]);
    return found.length ? found.join(", ") : "no label";
  }

  draw() {
    if (!this.steps) return;
    const at = Number(this.slider.value);
    const [base, now] = [this.steps[0], this.steps[at]];
    const end = this.steps.length - 1;
    this.where.textContent = at === 0 ? "base" : at === end ? `${at} of ${end}, refined` : `${at} of ${end}`;
    const rows = this.order.slice(0, this.all ? undefined : MOST_LABELS).map((i) => {
      const kind = now[i] > base[i] + 0.005 ? "up" : now[i] < base[i] - 0.005 ? "down" : "";
      return make(
        "tr",
        now[i] > 0.5 ? { class: "best" } : {},
        make("th", { scope: "row" }, this.names[i]),
        make("td", { class: "value" }, percent(base[i])),
        make("td", { class: "wide" }, bar(now[i], percent(now[i]), { kind, mark: base[i] })),
      );
    });
    this.table.tBodies[0].replaceChildren(...rows);
  }
}

// --- models without energies ----------------------------------------------------------------------------------------

class ProbabilitiesOutput {
  question = "predict";

  constructor(about) {
    this.about = about;
    this.names = (about.labels ?? about.classes ?? []).map(String);
    this.element = make("div", {});
  }

  show(answer) {
    const probabilities = answer.probabilities?.[0];
    if (probabilities) {
      const rows = probabilities.map((p, i) => {
        const cells = [make("th", { scope: "row" }, this.names[i]), make("td", { class: "wide" }, bar(p, percent(p)))];
        return make("tr", p > 0.5 ? { class: "best" } : {}, ...cells);
      });
      this.element.replaceChildren(table("Probabilities", ["label", "probability"], rows));
    }
    const found = answer.predictions[0];
    if (!Array.isArray(found)) return String(found);
    return this.names.filter((_, i) => found[i]).join(", ") || "no label";
  }
}
