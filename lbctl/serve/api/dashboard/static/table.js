// The table of replicas. Only the visible rows exist; they are reused while scrolling, so that 1,000 cost as much as
// 30.

import { h, setAttribute, setText } from "/dashboard/dom.js";
import { degrees, firstByte, number, percent, STATES } from "/dashboard/format.js";

const RANK = Object.keys(STATES);
const SPARE = 4;
const share = (field) => ({
  field,
  text: (row) => percent(row[field]),
  bar: (row, most) => row[field] / most,
  class: "num share",
});
const SHARES = ["declared", "share", "acknowledged", "observed"];
const ratio = (field) => ({ field, text: (row) => percent(row[field]), bar: (row) => row[field], class: "num ratio" });
const alarming = (field) => ({ field, text: (row) => percent(row[field]), bad: (row) => row[field] > 0.05, class: "num" });
const count = (field, digits) => ({ field, text: (row) => number(row[field], digits), class: "num" });

/** The columns: title, description, and content of a cell. `optional` ones are left out on narrow screens. */
const COLUMNS = [
  { title: "Replica", field: "name", class: "name", text: (row) => row.name, sub: (row) => row.gpu ?? row.address },
  { title: "State", field: "state", class: "state", text: (row) => row.state, state: true },
  { title: "Declared", about: "Share of the pool's requests by the files alone", ...share("declared") },
  { title: "Decided", about: "Share by measured weights, drains and overrides", ...share("share") },
  { title: "Acked", about: "Share in the newest fleet that all connected proxies have applied", ...share("acknowledged") },
  { title: "Observed", about: "Share of the last minute's requests, by the proxies' counts", ...share("observed") },
  { title: "Req/s", about: "Requests per second in the last minute", ...count("requests_per_second", 1) },
  { title: "Errors", about: "Error rate in the last minute", ...alarming("errors") },
  {
    title: "First byte",
    about: "Time to first byte in the last minute, 50th and 99th percentile",
    field: "first_byte_p99",
    class: "num",
    text: firstByte,
  },
  { title: "In flight", about: "Requests in flight", ...count("in_flight", 0) },
  { title: "Queue", about: "Requests that wait in the engine", ...count("queue", 0) },
  { title: "KV", about: "Utilisation of the key-value cache", ...ratio("kv_cache") },
  { title: "GPU", about: "GPU utilisation", ...ratio("gpu_utilisation") },
  {
    title: "Temp",
    about: "Temperature of the hottest GPU",
    field: "temperature",
    class: "num temp",
    text: (row) => degrees(row.temperature),
  },
  { title: "Why", field: "reason", class: "why", text: (row) => row.reason },
];

export class ReplicaTable {
  /** `open(row)` is called for the selected row, `held(row)` returns the text of its overrides. */
  constructor(open, held) {
    this.open = open;
    this.held = held;
    this.rows = [];
    this.active = 0;
    this.sort = { column: -1, down: false };
    this.pooled = [];
    this.head = h(
      "div",
      { role: "row", class: "tr th", "aria-rowindex": 1 },
      COLUMNS.map((column, index) => this.header(column, index)),
    );
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.empty = h("p", { class: "empty", hidden: true, text: "No replica matches." });
    this.element = h(
      "div",
      {
        class: "grid",
        role: "grid",
        tabindex: 0,
        "aria-label": "Replicas",
        "aria-colcount": COLUMNS.length,
        on: {
          scroll: () => this.draw(),
          keydown: (event) => this.key(event),
          focus: () => this.draw(),
          blur: () => this.draw(),
        },
      },
      h("div", { role: "rowgroup", class: "head" }, this.head),
      this.body,
      this.empty,
    );
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  header(column, index) {
    const button = h("button", {
      type: "button",
      text: column.title,
      title: column.about,
      on: { click: () => this.order(index) },
    });
    return h(
      "div",
      { role: "columnheader", class: `td ${column.class}`, "aria-colindex": index + 1, "aria-sort": "none" },
      button,
    );
  }

  order(index) {
    const column = COLUMNS[index];
    const first = column.class.startsWith("num") || column.state;
    if (this.sort.column !== index) this.sort = { column: index, down: first };
    else if (this.sort.down === first) this.sort = { column: index, down: !first };
    else this.sort = { column: -1, down: false };
    [...this.head.children].forEach((cell, place) => {
      const own = place === this.sort.column;
      setAttribute(cell, "aria-sort", own ? (this.sort.down ? "descending" : "ascending") : "none");
    });
    this.show(this.rows);
  }

  /** Show these rows; visible rows are changed in place. */
  show(rows) {
    this.rows = this.sort.column < 0 ? rows : [...rows].sort(this.comparison());
    this.most = mostShares(rows);
    this.active = Math.min(this.active, Math.max(0, rows.length - 1));
    setAttribute(this.element, "aria-rowcount", rows.length + 1);
    this.empty.hidden = rows.length > 0;
    this.draw();
  }

  comparison() {
    const { field, state } = COLUMNS[this.sort.column];
    const sign = this.sort.down ? -1 : 1;
    const value = state ? (row) => RANK.indexOf(row.state) : (row) => row[field];
    return (one, other) => {
      const [left, right] = [value(one), value(other)];
      if (left === right) return 0;
      if (left === null) return 1;
      if (right === null) return -1;
      return typeof left === "string"
        ? sign * left.localeCompare(right, undefined, { numeric: true })
        : sign * (left - right);
    };
  }

  draw() {
    if (!this.element.isConnected) return;
    const height = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 40;
    const total = `${this.rows.length * height}px`;
    if (this.body.style.height !== total) this.body.style.height = total;
    const first = Math.max(0, Math.floor(this.element.scrollTop / height) - SPARE);
    const last = Math.min(
      this.rows.length,
      Math.ceil((this.element.scrollTop + this.element.clientHeight) / height) + SPARE,
    );
    while (this.pooled.length < last - first) this.pooled.push(this.row());
    const focused = document.activeElement === this.element;
    this.pooled.forEach((view, place) => {
      const index = first + place;
      view.element.hidden = index >= last;
      if (index < last) this.fill(view, this.rows[index], index, height, focused && index === this.active);
      else this.leave(view);
    });
    setAttribute(this.element, "aria-activedescendant", focused && this.rows.length ? `row-${this.active}` : null);
  }

  row() {
    const cells = COLUMNS.map((column, index) => {
      const text = h("span", { class: "text" });
      const bar = column.bar ? h("i", { class: "bar" }) : null;
      const sub = column.sub ? h("small") : null;
      const cell = h(
        "div",
        { role: "gridcell", class: `td ${column.class}`, "aria-colindex": index + 1 },
        text,
        sub,
        bar,
      );
      return { cell, text, bar, sub };
    });
    const view = { cells, row: null };
    view.element = h(
      "div",
      { role: "row", class: "tr" },
      cells.map(({ cell }) => cell),
    );
    view.element.addEventListener("click", () => this.choose(view.index));
    this.body.append(view.element);
    return view;
  }

  fill(view, row, index, height, active) {
    const held = this.held(row);
    if (
      view.row === row &&
      view.index === index &&
      view.active === active &&
      view.held === held &&
      view.height === height
    )
      return;
    Object.assign(view, { row, index, active, held, height });
    const { element } = view;
    element.style.transform = `translateY(${index * height}px)`;
    setAttribute(element, "id", `row-${index}`);
    setAttribute(element, "aria-rowindex", index + 2);
    setAttribute(element, "data-state", row.state);
    element.classList.toggle("active", active);
    COLUMNS.forEach((column, place) => {
      const { cell, text, bar, sub } = view.cells[place];
      setText(
        text,
        column.field === "reason" && held ? [held, row.reason].filter(Boolean).join("; ") : column.text(row),
      );
      if (sub) setText(sub, `${row.pool} · ${column.sub(row)}`);
      if (bar) {
        const part = column.bar(row, this.most.get(row.pool)) ?? 0;
        bar.style.transform = `scaleX(${Math.max(0, Math.min(1, part))})`;
        cell.classList.toggle("high", column.class.includes("ratio") && part >= 0.9);
      }
      if (column.bad) cell.classList.toggle("high", column.bad(row));
      if (column.field === "reason" || column.field === "name") setAttribute(cell, "title", text.textContent);
    });
  }

  /** A hidden row has no id, because another row may have its place. */
  leave(view) {
    view.row = null;
    setAttribute(view.element, "id", null);
  }

  choose(index) {
    this.active = index;
    this.draw();
    this.open(this.rows[index]);
  }

  key(event) {
    const height = this.body.offsetHeight / Math.max(1, this.rows.length);
    const page = Math.max(1, Math.floor(this.element.clientHeight / height) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.target !== this.element || !this.rows.length) return;
    if (event.key === "Enter") this.open(this.rows[this.active]);
    else if (event.key in moves)
      this.active = Math.max(0, Math.min(this.rows.length - 1, this.active + moves[event.key]));
    else return;
    event.preventDefault();
    const top = this.active * height;
    const { scrollTop, clientHeight } = this.element;
    const head = this.head.offsetHeight;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + height + head > scrollTop + clientHeight)
      this.element.scrollTop = top + height + head - clientHeight;
    this.draw();
  }
}

/** Pool → the largest share of its replicas: bars of shares are relative to it, so that they can be compared. */
function mostShares(rows) {
  const most = new Map();
  for (const row of rows) {
    const own = Math.max(...SHARES.map((field) => row[field] ?? 0));
    if (!(own <= most.get(row.pool))) most.set(row.pool, own || 1);
  }
  return most;
}
