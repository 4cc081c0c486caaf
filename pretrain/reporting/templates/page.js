"use strict";
// The report: all text goes in as text, never as markup.
const report = JSON.parse(document.getElementById("report").textContent);

function dressed(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const make = (tag, attributes = {}, ...children) => dressed(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => dressed(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function short(value, exact) {
  const size = Math.abs(value), [unit, factor] = [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]].find(([, one]) => size >= one) || ["", 1];
  const number = value / factor;
  return (exact ? number.toPrecision(3) : String(Math.round(number * 100) / 100)).replace(/\.0+$/, "") + unit;
}

function written(value, unit, exact) {
  if (value === null || value === undefined) return "–";
  if (unit === "share") return `${(value * 100).toFixed(exact ? 1 : 2).replace(exact ? "" : /\.?0+$/, "")}%`;
  if (unit === "nats") return exact ? value.toFixed(4) : String(Math.round(value * 1000) / 1000);
  if (unit === "count") return short(value, exact);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.01 || size >= 1e5) return (exact ? value.toExponential(2) : Number(value.toPrecision(3)).toExponential()).replace("e+", "e");
  return exact ? value.toPrecision(3) : String(Number(value.toPrecision(3)));
}

function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60]];
  for (const [n, [unit, size]] of units.entries()) {
    if (seconds < size) continue;
    const [next, part] = units[n + 1] || ["s", 1];
    const rest = Math.floor(seconds % size / part);
    return `${Math.floor(seconds / size)} ${unit}` + (rest ? ` ${rest} ${next}` : "");
  }
  return seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

const when = unix => new Date(unix * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
const several = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

const KINDS = { skipped: "skipped step", spike: "loss spike", phase: "new phase" };

// The result in one line: loss, distance from the unigram, begin, duration, speed.
function result() {
  const { name, loss, unigram, begun, seconds } = report.result, speed = report.speeds.tokens_per_second;
  if (loss === undefined) return [];
  const nats = value => written(value, "nats", true);
  const gain = unigram ? `, ${nats(Math.abs(unigram - loss))} ${loss < unigram ? "below" : "above"} the ${nats(unigram)} of token frequencies alone (unigram)` : "";
  const parts = [`${name} loss ${nats(loss)} nats${gain}`, when(begun), duration(seconds)];
  if (speed) parts.push(`${short(speed, true)} real tokens/s`);
  return [make("p", { class: "result" }, parts.join(" · "))];
}

function head() {
  const { state, step, total_steps: total, reason, next_action: next } = report.status;
  const done = make("div");
  done.style.width = `${total ? Math.min(100, step / total * 100) : 0}%`;
  const found = [
    make("div", { class: "head" }, make("h1", {}, report.name), make("span", { class: `state ${state}` }, state)),
    ...result(),
    make("div", { class: "track" }, done),
    make("p", { class: "soft" }, total ? `step ${step.toLocaleString("en")} of ${total.toLocaleString("en")} · ` : "", reason,
      next && next !== "none" ? ` · next: ${next}` : ""),
  ];
  for (const words of report.notices) found.push(make("div", { class: "card notice" }, words));
  return found;
}

function numbers() {
  const shown = report.headline.map(([name, value, unit]) =>
    make("div", { class: "card" }, make("span", { class: "soft small" }, name),
      make("b", {}, unit === "seconds" ? duration(value) : written(value, unit, true)), unit === "nats" ? make("span", { class: "soft small" }, " nats") : ""));
  return shown.length ? [make("div", { class: "numbers" }, ...shown)] : [];
}

function choice(options, chosen, choose) {
  const buttons = options.map(([name, label]) => {
    const button = make("button", { "aria-pressed": name === chosen }, label);
    button.onclick = () => { for (const one of buttons) one.setAttribute("aria-pressed", one === button); choose(name); };
    return button;
  });
  return make("span", { class: "switch", role: "group" }, ...buttons);
}

function controls() {
  const axes = [["step", "steps"], ["tokens", "tokens"], ["hours", "time"]].filter(([name]) => name === "step" || report.axes[name]);
  const back = make("button", {}, "whole run"), whole = make("span", { class: "switch", id: "whole", hidden: "" }, back);
  back.onclick = () => zoom(null, null);
  const kinds = Object.entries(report.marks).filter(([, marks]) => marks.length).map(([kind, marks]) => {
    const button = make("button", { "aria-pressed": true, class: kind.replace(" ", "-") }, make("i"), several(report.counts[kind] || marks.length, KINDS[kind] || kind));
    button.onclick = () => {
      view.hidden[view.hidden.has(kind) ? "delete" : "add"](kind);
      button.setAttribute("aria-pressed", !view.hidden.has(kind));
      for (const chart of view.charts) chart.draw();
    };
    return button;
  });
  const axis = report.key ? "" : choice(axes, "step", name => { view.axis = name; zoom(null, null); });
  return make("div", { class: "bar" }, axis, whole, make("span", { class: "marks" }, ...kinds));
}

function charts() {
  if (!report.charts.length) return [];
  const grid = make("div", { class: "charts" });
  for (const spec of report.charts) {
    const chart = new Chart(spec, view.charts.length === 0);
    view.charts.push(chart);
    grid.append(chart.root);
  }
  if (report.charts.length % 2 === 0) grid.lastChild.classList.add("wide");
  return [make("h2", {}, report.key ? "Picture" : "Curves"), controls(), grid];
}

function timeSpent() {
  const spent = Object.entries(report.spent), wall = spent.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!wall) return [];
  const stack = make("div", { class: "stack" }), list = make("div", { class: "spent" });
  spent.forEach(([name, seconds], n) => {
    if (seconds < wall * 5e-5) return;
    const part = make("div", { class: `t${n}`, title: `${name}: ${duration(seconds)}` });
    part.style.flexGrow = seconds / wall;
    stack.append(part);
    list.append(make("div", {}, make("i", { class: `t${n}` }), name, make("br"),
      make("span", {}, `${duration(seconds)}, ${written(seconds / wall, "share", true)}`)));
  });
  return [make("h2", {}, "Where the time went"), make("div", { class: "card" }, stack, list, throughput(wall)), ...breaks()];
}

function throughput(wall) {
  const speeds = report.speeds, parts = [`${duration(wall)} in all`];
  if (speeds.tokens_per_second)
    parts.push(`${short(speeds.tokens_per_second, true)} real tokens/s while training`, `${short(speeds.tokens_per_second_overall, true)} over all the time`,
      `${written(speeds.padding, "share", true)} of all slots are padding`);
  const found = make("p", { class: "soft small" }, parts.join(" · "));
  found.style.marginTop = "14px";
  return found;
}

function breaks() {
  const rows = [...report.marks.restart, ...report.marks.rollback].sort((a, b) => a.time - b.time);
  if (!rows.length) return [];
  const cells = rows.map(one => [one.kind, when(one.time), `step ${one.after_step.toLocaleString("en")}`,
    several(Math.max(0, one.reached - one.after_step), "step"), duration(one.repeated), duration(one.pause)]);
  return [table("Restarts and rollbacks", ["", "when", "resumed after", "repeated", "time of repeated steps", "pause before"], cells)];
}

function table(title, names, rows) {
  const body = make("table", { class: "plain" }, make("tr", {}, ...names.map(name => make("th", {}, name))),
    ...rows.map(cells => make("tr", {}, ...cells.map(cell => make("td", {}, cell)))));
  const box = make("div", { class: "card scroll" }, make("h3", {}, title), body);
  box.style.marginTop = "14px";
  return box;
}

function facts() {
  const rows = report.facts.map(([name, value]) => make("tr", {}, make("th", {}, name), make("td", {}, name === "MLflow" && URL.canParse(value) ? make("a", { href: value }, value) : value)));
  if (report.exports.length)
    rows.push(make("tr", {}, make("th", {}, "Exports"), make("td", {}, ...report.exports.flatMap(({ name, link }) => [make("a", { href: link }, name), "\n"]))));
  const found = [make("h2", {}, "The run"), make("div", { class: "card" }, make("table", { class: "facts" }, ...rows))];
  return found;
}

function config() {
  if (!report.config.length) return [];
  const row = ({ key, value, default: usual, changed }) =>
    make("tr", changed ? { class: "changed" } : {}, make("td", {}, key), make("td", {}, value), make("td", { class: "soft" }, usual === null ? "" : `default ${usual}`));
  const part = (title, rows, open) => {
    const box = make("details", { class: "card" }, make("summary", {}, title), make("div", { class: "scroll" }, make("table", { class: "config" }, ...rows.map(row))));
    box.open = open;
    box.style.marginTop = "14px";
    return box;
  };
  const changed = report.config.filter(one => one.changed);
  return [make("h2", {}, "Config"), part(`${changed.length} of ${report.config.length} settings differ from the defaults`, changed, true), part("All settings", report.config, false)];
}
