// The page of a masking study.
const CHARACTER = 6.6;

function studyHead() {
  const found = [make("div", { class: "head" }, make("h1", {}, report.name)), make("p", { class: "soft" }, report.summary)];
  for (const words of report.notices) found.push(make("div", { class: "card notice" }, words));
  return found;
}

function verdict({ title, text, more, primary }) {
  const parts = [make("h3", {}, title), make("p", {}, text)];
  if (more.length) parts.push(make("details", {}, make("summary", {}, "size of the differences"), ...more.map(words => make("p", {}, words))));
  return make("div", { class: `card verdict${primary ? " primary" : ""}` }, ...parts);
}

function numeric(title, [names, ...rows]) {
  const box = table(title, names, rows);
  box.classList.add("numeric");
  return box;
}

// Differences from the baseline with their intervals, an arm a row.
function forest({ title, unit, better, rows }) {
  const scale = unit === "share" ? 100 : 1, width = 460, left = 14 + CHARACTER * Math.max(...rows.map(row => row.name.length));
  const ends = rows.flatMap(({ mean, interval }) => [mean, ...interval || []]).map(value => value * scale);
  let low = Math.min(0, ...ends), high = Math.max(0, ...ends);
  const room = (high - low) * 0.06 || 1;
  [low, high] = [low - room, high + room];
  const x = value => left + (value - low) / (high - low) * (width - left - 10), height = 24 * rows.length + 24;
  const drawn = ticks(low, high, 4).flatMap(value => [
    svg("line", { class: value === 0 ? "cross" : "grid", x1: x(value), x2: x(value), y1: 0, y2: height - 22 }),
    svg("text", { x: x(value), y: height - 6, "text-anchor": "middle" }, String(Number(value.toPrecision(6))))]);
  rows.forEach(({ name, mean, interval, apart }, n) => {
    const y = 24 * n + 14, hue = apart ? "apart" : "together", [from, to] = interval || [mean, mean];
    drawn.push(svg("text", { x: 0, y: y + 4 }, name), svg("line", { class: `whisker ${hue}`, x1: x(from * scale), x2: x(to * scale), y1: y, y2: y }),
      svg("circle", { class: `dot ${hue}`, cx: x(mean * scale), cy: y, r: 4 }));
  });
  const words = [unit === "share" ? "points" : unit === "nats" ? "nats" : "", `${better} is better`].filter(Boolean).join(", ");
  return make("section", { class: "card" }, make("h3", {}, title), make("p", { class: "soft small" }, words),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, ...drawn));
}

function section({ explanation, conclusions, means, costs, differences, forests }) {
  const found = [make("h2", {}, "Results"), make("p", { class: "soft lead" }, explanation), ...conclusions.map(verdict), numeric("Means over the seeds", means)];
  const last = numeric("Length and speed", costs);
  if (!forests.length) return [...found, last];
  return [...found, numeric("Differences from the baseline", differences), make("div", { class: "forests" }, ...forests.map(forest)), last];
}

function arms() {
  const [names, ...rows] = report.arms;
  return [make("h2", {}, "Arms"), table("Keys of masking that differ", names, rows),
    make("h2", {}, "How to read it"), ...report.how.map(words => make("p", { class: "verdict" }, words))];
}

document.getElementById("page").append(...studyHead(), ...section(report.section), ...charts(), ...arms(),
  make("footer", {}, `${report.path} · made ${when(report.time)} by Maskwright · bands reach from the lowest to the highest seed · drag in a curve to zoom`));
