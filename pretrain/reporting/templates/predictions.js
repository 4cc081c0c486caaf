// Passages of the held-out text, and the model's predictions in them at each evaluation.
class Predictions {
  constructor({ passages, asked, steps, answers }) {
    Object.assign(this, { asked, steps, answers, now: steps.length - 1, timer: null });
    this.guesses = asked.map((_, n) => this.guess(n));
    this.slider = make("input", { type: "range", min: 0, max: steps.length - 1, "aria-label": "evaluation" });
    this.slider.value = this.now;
    this.slider.oninput = () => { this.stop(); this.show(Number(this.slider.value)); };
    this.said = make("span");
    this.button = make("button", { "aria-pressed": false }, "▶ play");
    this.button.onclick = () => this.timer ? this.stop() : this.play();
    const texts = passages.map(segments => make("div", { class: "passage" },
      ...segments.map(segment => typeof segment === "number" ? this.guesses[segment] : segment)));
    this.root = make("div", { class: "card" },
      make("div", { class: "player" }, make("span", { class: "switch" }, this.button), this.slider, this.said), ...texts);
    this.note = make("div", { class: "card note", hidden: "" });
    document.body.append(this.note);
    this.show(this.now);
  }

  guess(n) {
    const found = make("button", { class: "guess" });
    found.onpointerenter = found.onfocus = () => this.explain(n, found);
    found.onpointerleave = found.onblur = () => { this.note.hidden = true; };
    return found;
  }

  show(now) {
    this.now = now;
    let right = 0;
    this.guesses.forEach((guess, n) => {
      const [[choice], [probability]] = this.answers[now][n], label = this.asked[n].label, hit = choice === label;
      right += hit;
      guess.className = `guess ${hit ? "right" : "wrong"}`;
      guess.style.setProperty("--p", probability);
      guess.replaceChildren(choice, ...(hit ? [] : [make("small", {}, label)]));
    });
    this.said.replaceChildren(make("b", {}, `step ${this.steps[now].toLocaleString("en")}`), ` · ${right} of ${several(this.asked.length, "token")} right`);
  }

  play() {
    const turn = () => {
      this.show((this.now + 1) % this.steps.length);
      this.slider.value = this.now;
      if (this.now === this.steps.length - 1) this.stop();
    };
    this.button.replaceChildren("◼ stop");
    this.timer = setInterval(turn, Math.max(120, Math.min(700, 9000 / this.steps.length)));
    if (this.now === this.steps.length - 1) this.now = -1;
    turn();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.replaceChildren("▶ play");
  }

  explain(n, guess) {
    const [choices, probabilities, right] = this.answers[this.now][n], { label, seen, kind } = this.asked[n];
    const row = (name, share, hue) => {
      const meter = make("div", { class: hue });
      meter.style.width = `${share * 100}%`;
      return make("div", { class: "row" }, make("span", {}, name), make("div", { class: "meter" }, meter), make("span", {}, written(share, "share", true)));
    };
    const rows = choices.map((choice, k) => row(choice, probabilities[k], choice === label ? "c2" : "rollback"));
    if (!choices.includes(label)) rows.push(row(`${label} (right)`, right, "c2"));
    const how = { mask: "masked", kept: "shown as it is", random: `shown as “${seen}”`, next: "not yet shown" }[kind] || kind;
    this.note.replaceChildren(make("div", {}, make("b", {}, label), make("span", { class: "soft" }, ` · ${how}`)), ...rows, ...this.history(n));
    const box = guess.getBoundingClientRect(), room = document.documentElement.clientWidth - 262;
    this.note.style.left = `${Math.max(8, Math.min(box.left, room)) + scrollX}px`;
    this.note.style.top = `${box.bottom + scrollY + 6}px`;
    this.note.hidden = false;
  }

  // The probability of the right token at each evaluation.
  history(n) {
    const values = this.answers.map(answers => answers[n][2]);
    if (values.length < 2) return [];
    const most = Math.max(0.05, ...values), x = k => k / (values.length - 1) * 214 + 4, y = k => 40 - values[k] / most * 34;
    const points = values.map((_, k) => `${x(k).toFixed(1)},${y(k).toFixed(1)}`);
    return [svg("svg", { viewBox: "0 0 222 44", class: "c2" }, svg("line", { class: "axis", x1: 4, x2: 218, y1: 40, y2: 40 }),
      svg("polyline", { class: "line", points: points.join(" ") }), svg("circle", { class: "dot", cx: x(this.now), cy: y(this.now), r: 3 })),
    make("div", { class: "soft" }, `probability of the right token, ${written(Math.max(...values), "share", true)} at most`)];
  }
}

function predictions() {
  if (!report.predictions) return [];
  return [make("h2", {}, "What the model says in held-out text"),
    make("p", { class: "soft small lead" }, "Each coloured token was hidden from the model or changed. The page shows the model's most probable token: the higher its probability, the stronger its colour. If it is wrong, the right token follows."), new Predictions(report.predictions).root];
}
