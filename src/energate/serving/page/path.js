// The way that the vector field takes a row, as an animation: play, pause, slider, and the energy along it.

import { changes, namesOf } from "./outputs.js";
import { among, figure, freshId, labelled, LineChart, make, onSchemeChange, Picture } from "./parts.js";

const STEPS = 60;
const FEWER = 30; // where a step is a pass through a network
const SECONDS = 4; // for the whole way
const FAR = 10; // times the usual size of a column: the model has seen nothing out there

export class Path {
  constructor(about, look, ask) {
    this.about = about;
    this.ask = ask;
    this.look = look;
    this.timer = 0;
    this.chart = new LineChart("Energy along the way");
    this.now = look && new Picture(look, "The row on its way", "large");
    const end = (word) => new Picture(look, `The row at the ${word}`, "small");
    this.ends = look && [end("start"), end("end")];
    this.changed = make("div", {});
    this.note = make("p", { class: "quiet" });
    const slider = freshId("path");
    const oninput = () => {
      this.pause();
      this.draw();
    };
    this.slider = make("input", { id: slider, type: "range", min: 0, max: 0, value: 0, oninput });
    this.where = make("output", { for: slider });
    const onclick = () => (this.timer ? this.pause() : this.play());
    this.button = make("button", { type: "button", class: "play", onclick }, "Play");
    const options = about.classes?.map((name, k) => make("option", { value: k }, String(name)));
    const usual = about.noise_levels ? "all classes together" : "the most probable";
    const best = make("option", { value: "" }, usual);
    this.select = options ? make("select", { onchange: () => this.follow() }, best, ...options) : null;
    const pictures = () => [figure(this.ends[0], "start"), figure(this.now, "now"), figure(this.ends[1], "end")];
    const name = make("label", { class: "hidden", for: slider }, "Step along the way");
    this.element = make(
      "div",
      { class: "path" },
      ...(this.select ? [labelled("Field of class", this.select, "chooser")] : []),
      ...(look ? [make("div", { class: "way" }, ...pictures())] : []),
      make("div", { class: "line slide" }, this.button, name, this.slider, this.where),
      make("h3", {}, `Energy along the way, in nats${about.familiarity ? ", without how familiar the picture is" : ""}`),
      this.chart.element,
      this.note,
      this.changed,
    );
    onSchemeChange(() => this.points && this.show());
  }

  forget() {
    this.row = null;
    this.pause();
  }

  // From another row: the way there so far is none of its business.
  from(row, sizes) {
    this.row = row;
    this.sizes = this.look ? sizes.map(() => this.look.high - this.look.low) : sizes;
    this.follow();
  }

  async follow() {
    this.pause();
    const body = { row: this.row, n_steps: this.about.shape ? FEWER : STEPS };
    if (this.select?.value) body.of = Number(this.select.value);
    this.element.setAttribute("aria-busy", "true");
    const answer = await this.ask(body);
    this.element.removeAttribute("aria-busy");
    if (!answer || this.row !== body.row) return; // it was cleared in the meantime
    const [start] = answer.points;
    const isFar = (value, i) => Math.abs(value - start[i]) > FAR * this.sizes[i];
    const far = answer.points.findIndex((point) => point.some(isFar));
    const n = far < 0 ? answer.points.length : Math.max(2, far);
    this.points = answer.points.slice(0, n);
    this.energies = answer.energies.slice(0, n);
    this.note.textContent = far < 0 ? "" : "Stopped here: the row runs off, far from all data.";
    this.slider.max = n - 1;
    this.slider.value = this.now ? 0 : n - 1; // columns say something only once they have changed
    this.show();
  }

  show() {
    this.chart.show(this.energies);
    this.ends?.[0].show(this.points[0]);
    this.ends?.[1].show(this.points.at(-1));
    this.draw();
  }

  draw() {
    if (!this.points) return;
    const at = Number(this.slider.value);
    const span = Math.max(...this.energies) - Math.min(...this.energies);
    this.where.textContent = `${at} of ${this.points.length - 1}, energy ${among(this.energies[at], span)}`;
    this.chart.moveTo(at);
    this.now?.show(this.points[at]);
    if (this.now) return;
    const [from, to] = [this.points[0], this.points.at(-1)];
    const caption = "Columns that have changed most";
    const names = namesOf(this.about);
    this.changed.replaceChildren(changes(names, from, this.points[at], this.sizes, caption, ["start", "now"], to));
  }

  play() {
    if (!this.points || this.points.length < 2) return;
    if (Number(this.slider.value) === this.points.length - 1) this.slider.value = 0;
    this.button.textContent = "Pause";
    this.timer = setInterval(() => {
      this.slider.value = Number(this.slider.value) + 1;
      this.draw();
      if (Number(this.slider.value) === this.points.length - 1) this.pause();
    }, (1000 * SECONDS) / this.points.length);
    this.draw();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.button.textContent = "Play";
  }
}
