// Charts that share the kind of x axis, the zoom, the marks and the position of the pointer.
const view = { axis: "step", from: null, to: null, hidden: new Set(), charts: [] };
const CHARACTER = 6.6;  // width of a letter
const MARGIN = { left: 54, right: 14, top: 10, bottom: 24 };
const TALL = new Set(["restart", "rollback", "phase"]);

// Linear interpolation in increasing `xs`.
function between(xs, ys, x) {
  if (x <= xs[0]) return ys[0];
  let low = 0, high = xs.length - 1;
  if (x >= xs[high]) return ys[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / (xs[high] - xs[low]);
}

const onAxis = step => view.axis === "step" ? step : between(report.axes.step, report.axes[view.axis], step);

// Positions on the axis of a study's key: by factors, if its values are spread so.
const [spread, gathered] = report.key && report.key.log ? [Math.log10, value => 10 ** value] : [value => value, value => value];

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
}

// Round values from low to high, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.75);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(n * step);
  return found;
}

function logTicks(low, high) {
  const found = [], decades = Math.log10(high / low);
  const factors = decades > 4 ? [1] : decades > 1 ? [1, 2, 5] : null;
  if (!factors) return ticks(low, high, 4);
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  return found;
}

class Chart {
  constructor(spec, wide) {
    this.spec = spec;
    this.height = wide ? 320 : 180;
    this.log = spec.log;
    this.averaged = spec.lines.some(line => line.style === "smooth");  // then the legend shows the average's last value
    this.entries = spec.lines.map(line => {
      const value = make("b");
      return { line, value, item: make("span", { class: `${hueOf(spec, line)} ${line.style}` }, make("i"), `${line.label} `, value) };
    });
    this.svg = svg("svg", { role: "img", "aria-label": spec.title, height: this.height });
    const scale = make("button", { "aria-pressed": this.log, title: "logarithmic scale" }, "log");
    scale.onclick = () => { this.log = !this.log; scale.setAttribute("aria-pressed", this.log); this.draw(); };
    this.root = make("section", { class: `card chart${wide ? " wide" : ""}` },
      make("header", {}, make("h3", {}, spec.title), scale),
      make("div", { class: "legend" }, ...this.entries.map(entry => entry.item)), this.svg);
    this.listen();
    // In a new animation frame: a legend that wraps changes the size again.
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.root);
  }

  get width() { return Math.max(120, this.svg.clientWidth); }
  x(value) {
    const [low, high, at] = [this.low, this.high, value].map(spread);
    return MARGIN.left + (at - low) / (high - low || 1) * (this.width - MARGIN.left - MARGIN.right);
  }
  xBack(pixel) {
    const [low, high] = [this.low, this.high].map(spread);
    return gathered(low + (pixel - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right) * (high - low));
  }
  y(value) {
    const [low, high, at] = this.log ? [this.bottom, this.top, value].map(Math.log10) : [this.bottom, this.top, value];
    return this.height - MARGIN.bottom - (at - low) / (high - low || 1) * (this.height - MARGIN.top - MARGIN.bottom);
  }

  draw() {
    [this.low, this.high] = range();
    this.lines = this.spec.lines.map(line => this.visible(line));
    this.fit();
    const clip = `clip-${view.charts.indexOf(this)}`, { width, height } = this;
    const frame = { x: MARGIN.left - 4, y: 0, width: width - MARGIN.left - MARGIN.right + 8, height: height - MARGIN.bottom };
    this.cross = svg("g", {});
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(
      svg("clipPath", { id: clip }, svg("rect", frame)), ...this.scales(),
      svg("g", { "clip-path": `url(#${clip})` }, ...this.marks(), ...this.spec.lines.flatMap((line, n) => this.path(line, this.lines[n]))),
      this.cross);
    this.point(null);
  }

  // The visible part of a line, with one more point on each side.
  visible(line) {
    const xs = line.x.map(onAxis);
    let first = xs.findIndex(x => x >= this.low), last = xs.findLastIndex(x => x <= this.high);
    if (first < 0) first = xs.length - 1;
    first = Math.max(0, first - 1);
    last = Math.min(xs.length - 1, last + 1);
    const part = values => values && values.slice(first, last + 1);
    return { x: part(xs), y: part(line.y), low: part(line.low), high: part(line.high) };
  }

  // Range of the y axis: all points of strong lines, and of faint lines all but the most extreme hundredth.
  fit() {
    const values = [];
    this.lines.forEach((line, n) => {
      const sorted = [...line.y, ...line.low || [], ...line.high || []].filter(y => !this.log || y > 0).sort((a, b) => a - b);
      const cut = this.spec.lines[n].style === "raw" && sorted.length > 100 ? Math.floor(sorted.length / 100) : 0;
      if (sorted.length) values.push(sorted[cut], sorted[sorted.length - 1 - cut]);
    });
    let low = Math.min(...values), high = Math.max(...values);
    if (!values.length) [low, high] = [this.log ? 0.1 : 0, 1];
    if (this.log) {
      const room = (high / low) ** 0.06 || 1;
      [this.bottom, this.top] = high > low ? [low / room, high * room] : [low / 2, high * 2];
      return;
    }
    if (low >= 0 && (low < 0.35 * high || this.spec.unit === "share" && low === high)) low = 0;
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    [this.bottom, this.top] = [low === 0 ? 0 : low - room, high + room];
  }

  scales() {
    const { width, height } = this, base = height - MARGIN.bottom, found = [];
    for (const value of this.log ? logTicks(this.bottom, this.top) : ticks(this.bottom, this.top, this.height > 200 ? 6 : 4)) {
      const y = this.y(value);
      found.push(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
        svg("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, written(value, this.spec.unit)));
    }
    found.push(svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }));
    const [unit, factor] = xUnit();
    let last = -Infinity;
    for (const value of report.key ? report.key.values : ticks(this.low / factor, this.high / factor, Math.max(3, Math.floor(width / 110)))) {
      const x = this.x(value * factor), text = xWritten(value) + (unit ? ` ${unit}` : "");
      if (report.key && (value < this.low || value > this.high || x - last < CHARACTER * text.length)) continue;  // would overlap
      last = x;
      const anchor = x > width - 40 ? "end" : "middle";
      found.push(svg("text", { x: anchor === "end" ? Math.min(x + 12, width - 2) : x, y: height - 7, "text-anchor": anchor }, text));
    }
    return found;
  }

  points(x, y) {
    return x.flatMap((value, n) => !this.log || y[n] > 0 ? [[this.x(value).toFixed(1), this.y(y[n]).toFixed(1)]] : []);
  }

  path(line, { x, y, low, high }) {
    const hue = hueOf(this.spec, line), points = this.points(x, y);
    const found = [svg("polyline", { class: `line ${line.style} ${hue}`, points: points.join(" ") })];
    if (low) found.unshift(...x.map((value, n) =>
      svg("line", { class: `whisker ${hue}`, x1: this.x(value), x2: this.x(value), y1: this.y(low[n]), y2: this.y(high[n]) })));
    if (line.style === "points" && points.length <= 80 || points.length === 1)
      found.push(...points.map(([cx, cy]) => svg("circle", { class: `dot ${hue}`, cx, cy, r: 2.6 })));
    return found;
  }

  marks() {
    const base = this.height - MARGIN.bottom, found = [];
    for (const [kind, marks] of Object.entries(report.marks)) {
      if (view.hidden.has(kind)) continue;
      const name = kind.replace(" ", "-"), tall = TALL.has(kind);
      let last = -Infinity;
      for (const mark of marks) {
        const x = this.x(onAxis(mark.step));
        if (!tall && x - last < 5) continue;  // closer labels would overlap
        last = x;
        if (mark.reached > mark.step)
          found.push(svg("rect", { class: `band ${name}`, x, y: MARGIN.top, width: Math.max(1, this.x(onAxis(mark.reached)) - x), height: base - MARGIN.top }));
        if (tall) found.push(svg("line", { class: `mark tall ${name}`, x1: x, x2: x, y1: MARGIN.top, y2: base }));
        else if (kind === "checkpoint" || kind === "failed save")
          found.push(svg("path", { class: `mark ${name}`, d: `M${x - 3.5} ${base}h7l-3.5-6z`, "stroke-width": 0 }));
        else found.push(svg("path", { class: `mark ${name}`, d: `M${x - 4} ${MARGIN.top - 6}h8l-4 7z`, "stroke-width": 0 }));
      }
    }
    return found;
  }

  // Show the values at x, or the last ones. The chart under the pointer also shows the events near x.
  point(x, inside) {
    if (!this.cross) return;  // not drawn yet
    this.cross.replaceChildren();
    this.entries.forEach(({ line, value }, n) => {
      const shown = this.lines[n];
      if (!shown.x.length) { value.textContent = "–"; return; }
      if (x === null && (this.spec.quiet || line.style === "raw" && this.averaged)) { value.textContent = ""; return; }
      const at = x === null ? shown.x.length - 1 : report.key ? shown.x.findIndex(value => valueAt(value) === valueAt(x)) : nearest(shown.x, x);
      if (at < 0) { value.textContent = "–"; return; }  // the line lacks this value
      value.textContent = written(shown.y[at], this.spec.unit, true);
      if (x !== null && line.style !== "raw" && (!this.log || shown.y[at] > 0) && shown.x[at] >= this.low && shown.x[at] <= this.high)
        this.cross.append(svg("circle", { class: `dot ${hueOf(this.spec, line)}`, cx: this.x(shown.x[at]), cy: this.y(shown.y[at]), r: 3.4 }));
    });
    if (x === null) return;
    const at = this.x(x), base = this.height - MARGIN.bottom, [unit, factor] = xUnit();
    const text = report.key ? `${report.key.name} ${report.key.labels[valueAt(x)]}` : view.axis === "step" ? `step ${Math.round(x).toLocaleString("en")}` : `${xWritten(x / factor, true)} ${unit}`;
    const left = at > this.width - 100;
    this.cross.prepend(svg("line", { class: "cross", x1: at, x2: at, y1: MARGIN.top, y2: base }),
      ...(inside ? [text, ...this.happened(x)] : []).map((words, n) =>
        svg("text", { x: at + (left ? -6 : 6), y: MARGIN.top + 10 + 14 * n, "text-anchor": left ? "end" : "start" }, words)));
  }

  // Names of the marks near x.
  happened(x) {
    const near = (this.high - this.low) / this.width * 5, found = [];
    for (const [kind, marks] of Object.entries(report.marks)) {
      if (view.hidden.has(kind)) continue;
      const mark = marks.find(one => Math.abs(onAxis(one.step) - x) <= near);
      if (mark) found.push(mark.pause === undefined ? mark.name || KINDS[kind] || kind : `${kind}, ${mark.reached - mark.after_step} steps repeated, ${duration(mark.pause)} pause`);
    }
    return found.slice(0, 3);
  }

  listen() {
    let from = null;
    const at = event => {
      const pixel = event.clientX - this.svg.getBoundingClientRect().left;
      return Math.min(this.high, Math.max(this.low, this.xBack(pixel)));
    };
    this.svg.onpointerdown = event => { if (event.pointerType === "mouse") { from = at(event); this.svg.setPointerCapture(event.pointerId); } };
    this.svg.onpointermove = event => {
      for (const chart of view.charts) chart.point(at(event), chart === this);
      if (from === null) return;
      const [a, b] = [this.x(from), this.x(at(event))].sort((p, q) => p - q);
      this.cross.append(svg("rect", { class: "chosen", x: a, y: MARGIN.top, width: b - a, height: this.height - MARGIN.top - MARGIN.bottom }));
    };
    this.svg.onpointerup = event => {
      const to = at(event);
      if (from !== null && Math.abs(this.x(to) - this.x(from)) > 8) zoom(Math.min(from, to), Math.max(from, to));
      from = null;
    };
    this.svg.onpointerleave = () => { from = null; for (const chart of view.charts) chart.point(null); };
    this.svg.ondblclick = () => zoom(null, null);
  }
}

// The visible range of the x axis.
function range() {
  if (view.from !== null) return [view.from, view.to];
  const all = report.key ? report.key.values : report.charts.flatMap(chart => chart.lines.flatMap(line => [line.x[0], line.x[line.x.length - 1]].map(onAxis)));
  const low = Math.min(...all), high = Math.max(...all);
  return high > low ? [low, high] : [low - 1, high + 1];
}

function zoom(from, to) {
  [view.from, view.to] = [from, to];
  document.getElementById("whole").hidden = from === null;
  for (const chart of view.charts) chart.draw();
}

function hueOf(spec, line) {
  if (line.hue !== undefined) return `c${line.hue % 8} d${Math.floor(line.hue / 8) % 3}`;
  const shown = spec.lines.filter(other => other.style === "points");
  return `c${line.style === "points" ? 1 + shown.indexOf(line) : 0}`;
}

function xUnit() {
  if (view.axis !== "hours") return [view.axis === "tokens" ? "tokens" : "", 1];
  const [low, high] = range(), span = high - low;
  return span > 72 ? ["d", 24] : span > 1.5 ? ["h", 1] : span > 0.05 ? ["min", 1 / 60] : ["s", 1 / 3600];
}

// The index of a study's value that is nearest.
const valueAt = x => nearest(report.key.values.map(spread), spread(x));

function xWritten(value, exact) {
  if (report.key) return report.key.labels[report.key.values.indexOf(value)];
  if (view.axis === "step") return Math.round(value * 100) / 100 >= 1e6 ? short(value, exact) : (Math.round(value * 100) / 100).toLocaleString("en");
  return view.axis === "tokens" ? short(value, exact) : String(Math.round(value * 100) / 100);
}
