// Pictures as the model would have them: without noise, and with erased parts filled in while one watches.

import { figure, freshId, make, Picture, strangeness } from "./parts.js";

const SECONDS = 1.6; // from the first stage of filling in to the last
const BRUSH = 1 / 7; // of the width, that a finger erases
const HALVES = {
  "right half": ([, x]) => x >= 0.5,
  "lower half": ([y]) => y >= 0.5,
  middle: ([y, x]) => Math.abs(y - 0.5) < 0.2 && Math.abs(x - 0.5) < 0.2,
};

export class Restoring {
  constructor(about, look, ask) {
    Object.assign(this, { about, look, ask });
    this.noise = gaussian(look.width * look.height * look.channels);
    this.noisy = new Picture(look, "The picture with noise", "medium");
    this.clean = new Picture(look, "The picture without noise, as the model restores it", "medium");
    this.torn = new Picture(look, "Erase with mouse or finger; the buttons below erase parts, too", "medium torn");
    this.filled = new Picture(look, "The picture with the erased part filled in", "medium");
    this.said = make("p", { class: "quiet", "aria-live": "polite" });
    this.hint = make("p", { class: "quiet" }, "Wipe over the picture to erase a part of it, or take one of these:");
    const slider = freshId("noise");
    const most = about.noise_levels?.[1] ?? 0.5;
    const oninput = () => this.denoise();
    this.level = make("input", { id: slider, type: "range", min: 0, max: most, step: 0.05, value: 0.3, oninput });
    this.where = make("output", { for: slider });
    this.forgotten();
    Object.assign(this.torn.element, {
      onpointerdown: (event) => this.wipe(event, true),
      onpointermove: (event) => this.wipe(event, false),
      onpointerup: () => this.fill(),
      onpointercancel: () => this.fill(),
    });
    const parts = Object.entries(HALVES).map(([name, inside]) =>
      make("button", { type: "button", onclick: () => this.erase(inside) }, `Erase the ${name}`),
    );
    const whole = make("button", { type: "button", onclick: () => this.from(this.row) }, "Undo");
    this.element = make(
      "div",
      {},
      make("h3", {}, "Without its noise"),
      make("div", { class: "way" }, figure(this.noisy, "with noise"), figure(this.clean, "restored")),
      make("div", { class: "line slide" }, make("label", { for: slider }, "Noise"), this.level, this.where),
      make("h3", {}, "Filled in"),
      make("div", { class: "way" }, figure(this.torn, "erase here"), figure(this.filled, "filled in")),
      this.hint,
      make("div", { class: "line apart" }, ...parts, whole),
      this.said,
    );
  }

  forgotten() {
    clearInterval(this.timer);
    this.hidden = new Array(this.look.width * this.look.height).fill(false);
  }

  from(row) {
    this.forgotten();
    this.row = row;
    this.said.textContent = "";
    this.torn.show(row);
    this.filled.show(row);
    this.denoise();
  }

  async denoise() {
    const level = Number(this.level.value);
    const size = this.look.high - this.look.low;
    const row = this.row.map((value, i) => value + level * size * this.noise[i]);
    this.where.textContent = `${Math.round(100 * level)} % of the range`;
    this.noisy.show(row);
    const least = this.about.noise_levels?.[0] ?? 0;
    const told = this.about.level_told ? { level: [[Math.max(level, least)]] } : {};
    const answer = await this.ask("denoise", { rows: [row], ...told });
    if (answer) this.clean.show(answer.images[0]);
  }

  // --- erasing ----------------------------------------------------------------------------------------------------

  wipe(event, begins) {
    if (!this.row || (!begins && !this.wiping)) return;
    if (begins) {
      clearInterval(this.timer);
      this.torn.element.setPointerCapture(event.pointerId);
      this.wiping = true;
    }
    const { left, top, width, height } = this.torn.element.getBoundingClientRect();
    const [x, y] = [(event.clientX - left) / width, (event.clientY - top) / height];
    const far = height / width;
    this.mark(([down, across]) => Math.hypot(across - x, far * (down - y)) < BRUSH / 2);
  }

  mark(inside) {
    const { width, height } = this.look;
    this.hidden = this.hidden.map(
      (was, i) => was || inside([(Math.floor(i / width) + 0.5) / height, ((i % width) + 0.5) / width]),
    );
    this.torn.show(this.row, this.hidden);
  }

  erase(inside) {
    if (!this.row) return;
    this.forgotten();
    this.mark(inside);
    this.wiping = true;
    this.fill();
  }

  async fill() {
    if (!this.wiping) return;
    this.wiping = false;
    this.element.setAttribute("aria-busy", "true");
    const row = this.row;
    const answer = await this.ask("inpaint", { rows: [row], mask: [this.hidden.map(Number)] });
    this.element.removeAttribute("aria-busy");
    if (!answer || this.row !== row) return;
    this.play(answer.frames[0]);
    const n = this.hidden.filter(Boolean).length;
    const judged = strangeness(answer.p_value?.[0], "pictures")?.text ?? "";
    this.said.textContent = `${n} ${n === 1 ? "pixel" : "pixels"} filled in. ${judged}`;
  }

  play(frames) {
    clearInterval(this.timer);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let at = still ? frames.length - 1 : 0;
    this.filled.show(frames[at]);
    if (still) return;
    this.timer = setInterval(() => {
      at += 1;
      this.filled.show(frames[at]);
      if (at === frames.length - 1) clearInterval(this.timer);
    }, (1000 * SECONDS) / frames.length);
  }
}

// The same noise every time, so that only its size changes with the slider.
function gaussian(n) {
  let state = 12345;
  const uniform = () => {
    state = (16807 * state) % 2147483647;
    return state / 2147483647;
  };
  return Array.from({ length: n }, () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
}
