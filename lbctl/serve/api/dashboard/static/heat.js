// The heat map: a row per replica, a column per moment, a colour per value. It is one picture, drawn point by point.

import { series } from "/dashboard/api.js";
import { h, keyed, setText } from "/dashboard/dom.js";
import { clock, degrees, number, percent, STATES } from "/dashboard/format.js";

const COLUMNS = 120;
/** Minimum number of columns in the picture: a history of a minute does not fill it. */
const LEAST_COLUMNS = 24;
const STATE_COLOURS = {
  in: "#2e9e5b",
  ramping: "#38bdf8",
  slow: "#eab308",
  hot: "#f97316",
  unknown: "#ca8a04",
  starting: "#0e7490",
  asleep: "#475569",
  draining: "#a78bfa",
  drained: "#7c6bb3",
  ejected: "#ef4444",
  down: "#991b1b",
  removed: "#6b7280",
};
/** Dark blue to yellow, with even lightness, also for colour-blind people (after matplotlib's "viridis"). */
const SCALE = [
  [68, 1, 84],
  [71, 44, 122],
  [59, 81, 139],
  [44, 113, 142],
  [33, 144, 141],
  [39, 173, 129],
  [92, 200, 99],
  [170, 220, 50],
  [253, 231, 37],
];
const METRICS = {
  observed: { title: "Observed share", text: percent },
  share: { title: "Decided share", text: percent },
  requests_per_second: { title: "Requests per second", text: (value) => number(value, 1) },
  in_flight: { title: "In flight", text: number },
  queue: { title: "Queue", text: number },
  kv_cache: { title: "KV cache", text: percent, most: 1 },
  gpu_utilisation: { title: "GPU busy", text: percent, most: 1 },
  temperature: { title: "Temperature", text: degrees },
  state: { title: "State", text: (value) => Object.keys(STATES)[value] ?? "–" },
};
const NAMES = Object.keys(STATES);

export class Heat {
  /** `open(pool, name)` is called for the selected replica. */
  constructor(element, store, open) {
    this.store = store;
    this.open = open;
    this.chosen = false;
    this.pool = h("select", { on: { change: () => ((this.chosen = true), this.load()) } });
    this.metric = h("select", { on: { change: () => this.load() } });
    keyed(
      this.metric,
      Object.entries(METRICS),
      ([name]) => name,
      ([name, { title }]) => h("option", { value: name, text: title }),
      () => {},
    );
    this.canvas = h("canvas", {
      class: "heat",
      role: "img",
      tabindex: 0,
      on: {
        mousemove: (event) => this.point(event),
        mouseleave: () => this.point(null),
        click: (event) => this.choose(event),
      },
    });
    this.names = h("div", { class: "heat-names", "aria-hidden": "true" });
    this.tip = h("p", { class: "tip", role: "status", text: "" });
    this.legend = h("div", { class: "legend" });
    this.times = h("div", { class: "heat-times" }, h("span"), h("span", { text: "now" }));
    this.about = h("p", { class: "muted" });
    element.append(
      h(
        "div",
        { class: "controls" },
        h("label", { text: "Pool " }, this.pool),
        h("label", { text: "Metric " }, this.metric),
        this.tip,
        this.legend,
      ),
      h("div", { class: "heat-frame" }, this.names, this.canvas),
      this.times,
      this.about,
    );
    this.element = element;
    this.rows = [];
    this.columns = [];
    this.loadedAt = 0;
    new ResizeObserver(() => this.draw()).observe(element);
    store.addEventListener("change", ({ detail }) => this.update(detail));
    setInterval(() => this.step(), 1000);
  }

  update(changed) {
    if (!changed.has("pools")) return;
    keyed(
      this.pool,
      this.store.pools,
      (item) => item.name,
      (item) => h("option", { value: item.name, text: item.name }),
      () => {},
    );
    if (!this.visible() || this.columns.length) return;
    if (!this.chosen) this.pool.value = busiest(this.store.pools);
    this.load();
  }

  visible() {
    return !this.element.hidden;
  }

  async load() {
    const [pool, metric] = [this.pool.value, this.metric.value];
    if (!pool) return;
    this.loadedAt = this.store.now();
    try {
      const history = await series(pool, metric, "*", COLUMNS);
      if (pool !== this.pool.value || metric !== this.metric.value) return;
      this.rows = history.replicas.map((row) => row.replica);
      this.columns = history.times.map((at, index) => ({
        at: at * 1000,
        values: history.replicas.map((row) => row.values[index]),
      }));
      setText(this.about, this.columns.length ? "" : "No history yet. The first sample appears within seconds.");
    } catch (error) {
      setText(this.about, error.message);
    }
    this.gap = this.columns.length > 1 ? this.columns.at(-1).at - this.columns.at(-2).at : 5000;
    this.draw();
  }

  /** Add a column for this moment, at the same distance as the columns of the history. */
  step() {
    if (!this.visible() || !this.pool.value || document.documentElement.classList.contains("stale")) return;
    if (this.store.now() - (this.columns.at(-1)?.at ?? 0) < (this.gap ?? 0)) return;
    const rows = new Map((this.store.byPool.get(this.pool.value) ?? []).map((row) => [row.name, row]));
    if (rows.size !== this.rows.length || this.rows.some((name) => !rows.has(name))) {
      // The history contains new replicas after its next sample: more frequent requests would return the same rows.
      if (this.store.now() - this.loadedAt >= (this.gap ?? 5000)) this.load();
      return;
    }
    const metric = this.metric.value;
    const value = metric === "state" ? (row) => NAMES.indexOf(row.state) : (row) => row[metric];
    this.columns.push({ at: this.store.now(), values: this.rows.map((name) => value(rows.get(name))) });
    if (this.columns.length > COLUMNS) this.columns.shift();
    setText(this.about, "");
    this.draw();
  }

  draw() {
    if (!this.visible() || !this.rows.length || !this.columns.length) return;
    const { most, paint } = this.painter();
    this.room = Math.max(LEAST_COLUMNS, this.columns.length);
    const picture = new ImageData(this.columns.length, this.rows.length);
    this.columns.forEach(({ values }, x) =>
      values.forEach((value, y) => {
        if (value === null || value === undefined || value < 0) return;
        picture.data.set([...paint(value), 255], 4 * (y * this.columns.length + x));
      }),
    );
    const cell = Math.max(3, Math.min(22, Math.floor(560 / this.rows.length)));
    this.cell = cell;
    const small = new OffscreenCanvas(picture.width, picture.height);
    small.getContext("2d").putImageData(picture, 0, 0);
    const scale = window.devicePixelRatio || 1;
    this.canvas.style.height = `${cell * this.rows.length}px`;
    this.canvas.width = this.canvas.clientWidth * scale;
    this.canvas.height = cell * this.rows.length * scale;
    const context = this.canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    const width = (this.canvas.width * this.columns.length) / this.room;
    context.drawImage(small, this.canvas.width - width, 0, width, this.canvas.height);
    if (cell > 6) this.lines(context, cell * scale);
    this.describe(most);
  }

  /** Leave a gap between rows that are high enough. */
  lines(context, cell) {
    for (let row = 1; row < this.rows.length; row += 1) context.clearRect(0, row * cell - 1, this.canvas.width, 1);
  }

  painter() {
    if (this.metric.value === "state") {
      const colours = NAMES.map((name) => [1, 3, 5].map((at) => parseInt(STATE_COLOURS[name].slice(at, at + 2), 16)));
      return { most: null, paint: (value) => colours[value] };
    }
    const most =
      METRICS[this.metric.value].most ??
      Math.max(1e-9, ...this.columns.map(({ values }) => Math.max(...values.map((value) => value ?? 0))));
    return { most, paint: (value) => shade(Math.min(1, value / most)) };
  }

  describe(most) {
    const { title, text } = METRICS[this.metric.value];
    const marks =
      most === null
        ? NAMES.map((name) => [STATE_COLOURS[name], name])
        : [0, 0.25, 0.5, 0.75, 1].map((part) => [`rgb(${shade(part)})`, text(part * most)]);
    const known = this.columns.some(({ values }) => values.some((value) => value !== null && value !== undefined));
    if (!known) setText(this.about, `${title} is unknown for all replicas of ${this.pool.value}.`);
    this.legend.hidden = !known;
    keyed(
      this.legend,
      marks,
      (mark) => marks.indexOf(mark),
      () => h("span", { class: "mark" }, h("i"), h("b")),
      (element, [colour, label]) => {
        element.firstChild.style.background = colour;
        setText(element.lastChild, label);
      },
    );
    const shown = this.cell >= 11 ? this.rows : [];
    this.names.hidden = !shown.length;
    keyed(
      this.names,
      shown,
      (name) => name,
      (name) => h("span", { text: name, title: name }),
      (element) => {
        element.style.height = `${this.cell}px`;
      },
    );
    const begun = this.store.now() - this.gap * (this.room - 1);
    setText(this.times.firstChild, clock(begun));
    this.canvas.setAttribute(
      "aria-label",
      `${title} of ${this.rows.length} replicas of ${this.pool.value}, from ${clock(this.columns[0].at)} to now`,
    );
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * this.room) - (this.room - this.columns.length);
    return { row: Math.floor((event.clientY - box.top) / this.cell), column: x };
  }

  point(event) {
    const { row, column } = event ? this.place(event) : {};
    const moment = this.columns[column];
    if (!moment || !this.rows[row]) return setText(this.tip, "");
    return setText(
      this.tip,
      `${this.rows[row]} · ${METRICS[this.metric.value].text(moment.values[row])} · ${clock(moment.at)}`,
    );
  }

  choose(event) {
    const name = this.rows[this.place(event).row];
    if (name) this.open(this.pool.value, name);
  }
}

/** The name of the pool with the most requests; empty if there is none. */
function busiest(pools) {
  const rate = (pool) => pool.requests_per_second ?? 0;
  return pools.reduce((best, pool) => (rate(pool) > rate(best) ? pool : best), pools[0])?.name ?? "";
}

function shade(part) {
  const at = part * (SCALE.length - 1);
  const low = Math.min(SCALE.length - 2, Math.floor(at));
  return SCALE[low].map((value, index) => Math.round(value + (SCALE[low + 1][index] - value) * (at - low)));
}
