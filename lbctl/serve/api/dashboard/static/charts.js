// Charts of one replica or one pool: uPlot draws them, the API provides the history, and each frame adds a point.

import { series } from "/dashboard/api.js";
import { h } from "/dashboard/dom.js";
import { clock, number, percent } from "/dashboard/format.js";

const MAX_POINTS = 1500;
const LEAST_GAP = 2;
const HEIGHT = 120;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const asPercent = (values) => values.map((value) => percent(value));
const asNumber = (values) => values.map((value) => number(value, value !== null && value < 10 ? 1 : 0));

/** The charts: metrics with their label and colour, and the format of the axis. */
const REPLICA_CHARTS = [
  {
    title: "Share of the pool's requests",
    format: asPercent,
    lines: [
      ["share", "decided", "--blue"],
      ["observed", "observed", "--green"],
    ],
  },
  {
    title: "Requests",
    format: asNumber,
    lines: [
      ["requests_per_second", "a second", "--green"],
      ["in_flight", "in flight", "--blue"],
      ["queue", "queued", "--amber"],
    ],
  },
  {
    title: "Cache and GPU",
    format: asPercent,
    lines: [
      ["kv_cache", "KV cache", "--violet"],
      ["gpu_utilisation", "GPU busy", "--blue"],
    ],
  },
  { title: "Temperature in °C", format: asNumber, lines: [["temperature", "hottest GPU", "--red"]] },
];
const POOL_CHARTS = [
  {
    title: "Requests",
    format: asNumber,
    lines: [
      ["requests_per_second", "a second", "--green"],
      ["in_flight", "in flight", "--blue"],
      ["queue", "queued", "--amber"],
    ],
  },
  {
    title: "Cache and GPU, mean",
    format: asPercent,
    lines: [
      ["kv_cache", "KV cache", "--violet"],
      ["gpu_utilisation", "GPU busy", "--blue"],
    ],
  },
  { title: "Replicas in", format: asNumber, lines: [["state", "in", "--green"]] },
];
const SUMS = ["requests_per_second", "in_flight", "queue"];

/** The charts of a replica, or of a pool if `replica` is empty. `close` ends them. */
export class Charts {
  constructor(pool, replica) {
    this.pool = pool;
    this.replica = replica;
    this.element = h("div", { class: "charts" });
    this.closed = false;
    this.charts = (replica ? REPLICA_CHARTS : POOL_CHARTS).map((spec) => new Chart(spec, this.element));
    this.resized = new ResizeObserver(() => this.charts.forEach((chart) => chart.resize(this.element.clientWidth)));
    this.resized.observe(this.element);
    this.load();
  }

  async load() {
    await Promise.all(
      this.charts.map(async (chart) => {
        try {
          const { lines } = chart.spec;
          const histories = await Promise.all(lines.map(([metric]) => series(this.pool, metric, this.replica)));
          if (!this.closed)
            chart.begin(
              histories.map((each) => [each.times, this.replica ? (each.replicas[0]?.values ?? []) : each.total]),
            );
        } catch (error) {
          chart.fail(error.message);
        }
      }),
    );
  }

  /** Add the values of this moment. `rows`: the replica, or all of the pool. */
  add(at, rows) {
    for (const chart of this.charts) {
      chart.add(
        at / 1000,
        chart.spec.lines.map(([metric]) => (this.replica ? rows[0][metric] : poolValue(rows, metric))),
      );
    }
  }

  close() {
    this.closed = true;
    this.resized.disconnect();
    this.charts.forEach((chart) => chart.plot?.destroy());
  }
}

/** As the history of a pool has it: the sum of requests, the mean of ratios, the number of replicas that are in. */
export function poolValue(rows, metric) {
  if (metric === "state") return rows.filter((row) => row.state === "in").length;
  const values = rows.map((row) => row[metric]).filter((value) => value !== null);
  if (!values.length) return null;
  const sum = values.reduce((one, other) => one + other, 0);
  return SUMS.includes(metric) ? sum : sum / values.length;
}

class Chart {
  constructor(spec, parent) {
    this.spec = spec;
    this.place = h("div", { class: "plot" });
    this.about = h("p", { class: "muted", text: "loading the history" });
    parent.append(h("figure", {}, h("figcaption", { text: spec.title }), this.about, this.place));
  }

  fail(message) {
    this.about.hidden = false;
    this.about.textContent = message;
  }

  begin(histories) {
    const times = [...new Set(histories.flatMap(([each]) => each))].sort((one, other) => one - other);
    const columns = histories.map(([own, values]) => {
      const byTime = new Map(own.map((time, index) => [time, values[index]]));
      return times.map((time) => byTime.get(time) ?? null);
    });
    this.data = [times, ...columns];
    this.about.hidden = true;
    this.plot = new window.uPlot(this.options(), this.data, this.place);
  }

  options() {
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui",
    };
    const lines = this.spec.lines.map(([, label, name]) => ({
      label,
      stroke: colour(name),
      width: 1.5,
      points: { show: false },
      spanGaps: false,
      value: (plot, value, series) => this.legend(plot.cursor.idx == null ? this.data[series].at(-1) : value),
    }));
    return {
      width: this.place.clientWidth || 320,
      height: HEIGHT,
      series: [{ label: "at", value: (_plot, time) => (time ? clock(time * 1000) : "now") }, ...lines],
      scales: { y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, space: 70, size: 24, values: (_plot, times) => times.map((time) => clock(time * 1000)) },
        { ...axis, size: 46, values: (_plot, values) => this.spec.format(values) },
      ],
      cursor: { y: false, points: { size: 6 } },
    };
  }

  /** The text of a value in the legend: the one below the pointer, else the newest. */
  legend(value) {
    return value === null || value === undefined ? "–" : this.spec.format([value])[0];
  }

  add(at, values) {
    if (!this.plot || at - (this.data[0].at(-1) ?? 0) < LEAST_GAP) return;
    this.data.forEach((column, index) => {
      column.push(index ? values[index - 1] : at);
      if (column.length > MAX_POINTS) column.shift();
    });
    this.plot.setData(this.data);
  }

  resize(width) {
    if (this.plot && width && this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
  }
}
