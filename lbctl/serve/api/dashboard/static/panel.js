// The panel next to the tables: one replica or one pool with its numbers, charts and actions.

import * as actions from "/dashboard/actions.js";
import { Charts } from "/dashboard/charts.js";
import { perform } from "/dashboard/dialog.js";
import { h, keyed, setAttribute, setText } from "/dashboard/dom.js";
import { degrees, firstByte, latency, number, percent, since, span, STATES, UNKNOWN } from "/dashboard/format.js";

export class Panel {
  constructor(element, store) {
    this.element = element;
    this.store = store;
    this.shown = null;
    store.addEventListener("change", () => this.update());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.shown && !document.querySelector("dialog[open]")) this.close();
    });
  }

  /** Show a replica, or the pool if `name` is empty. */
  open(pool, name = "") {
    this.charts?.close();
    this.before ??= document.activeElement;
    this.shown = { pool, name };
    this.charts = new Charts(pool, name);
    this.title = h("h2", { tabindex: -1 });
    this.state = h("p", { class: "lead" });
    this.shares = h("dl", { class: "shares", "aria-label": "Shares of the pool's requests", hidden: !name });
    this.facts = h("dl", { class: "facts" });
    this.buttons = h("div", { class: "buttons" });
    this.element.replaceChildren(
      h(
        "header",
        {},
        this.title,
        h("button", {
          type: "button",
          class: "quiet",
          "aria-label": "Close",
          text: "✕",
          on: { click: () => this.close() },
        }),
      ),
      this.state,
      this.shares,
      this.buttons,
      this.facts,
      this.charts.element,
    );
    this.element.hidden = false;
    document.body.classList.add("with-panel");
    this.update();
    this.title.focus({ preventScroll: true });
  }

  close() {
    this.charts?.close();
    this.shown = null;
    this.element.hidden = true;
    document.body.classList.remove("with-panel");
    this.before?.focus?.();
    this.before = null;
  }

  update() {
    if (!this.shown) return;
    const { pool, name } = this.shown;
    const rows = this.store.byPool.get(pool) ?? [];
    const row = this.store.replica(pool, name);
    setText(this.title, name ? `${name} in ${pool}` : pool);
    if (name && !row) return void setText(this.state, "This replica is no longer in the fleet.");
    if (name) this.replica(row);
    else this.pool(pool, rows);
    this.charts.add(this.store.now(), name ? [row] : rows);
  }

  replica(row) {
    const held = ["drain", "weight"].map((kind) => this.store.override(kind, row.pool, row.name)).filter(Boolean);
    const time = row.since ? ` for ${since(row.since, this.store.now())}` : "";
    setAttribute(this.state, "data-state", row.state);
    setText(this.state, `${row.state}${time}: ${row.reason || STATES[row.state] || ""}`);
    keyed(
      this.shares,
      [
        ["declared", row.declared],
        ["decided", row.share],
        ["acknowledged", row.acknowledged],
        ["observed", row.observed],
      ],
      ([label]) => label,
      ([label]) => h("div", {}, h("dt", { text: label }), h("dd")),
      (element, [, value]) => setText(element.lastChild, percent(value)),
    );
    this.table([
      ["Requests/s", number(row.requests_per_second, 1)],
      ["Failed requests", percent(row.errors)],
      ["First byte p50 / p99", firstByte(row)],
      ["In flight", number(row.in_flight)],
      ["Queue", number(row.queue)],
      ["KV cache", percent(row.kv_cache)],
      ...(row.cached_expected === null ? [] : cachedFacts(row.cached_expected, row.cached_found)),
      ["GPU busy", percent(row.gpu_utilisation)],
      ["Temperature", degrees(row.temperature)],
      ["Weight", number(row.weight, 2)],
      ["Capacity", number(row.capacity, 2)],
      ["GPU", row.gpu ?? UNKNOWN],
      ["Address", row.address],
      ["Zone", row.zone ?? UNKNOWN],
      ...held.map((item) => [item.kind === "drain" ? "Drained" : `Weight override ${item.value}`, heldBy(item)]),
    ]);
    const [drained, weighed] = ["drain", "weight"].map((kind) => held.find((item) => item.kind === kind));
    this.offer([
      drained ? ["Undrain", () => actions.undrain(row)] : ["Drain", () => actions.drain(row, this.store)],
      [weighed ? "Change weight" : "Override weight", () => actions.setWeight(row)],
      weighed && ["Release weight", () => actions.unsetWeight(row)],
    ]);
  }

  pool(name, rows) {
    const pool = this.store.pools.find((item) => item.name === name);
    const control = this.store.status?.control.find((item) => item.pool === name);
    const frozen = this.store.override("freeze", name);
    const weights = control
      ? `Weights: ${control.mode}${control.reason ? `, ${control.reason}` : ""}`
      : "Weights equal the capacities, because the pool has no telemetry.";
    const advice = pool?.cached?.advice;
    setText(this.state, advice ? `${weights}. Few of the expected cached tokens were found: ${advice}.` : weights);
    this.table([
      ["Model", pool?.model ?? UNKNOWN],
      ["Algorithm", pool?.algorithm ?? UNKNOWN],
      ["Replicas", String(rows.length)],
      ["Requests/s", number(pool?.requests_per_second, 1)],
      ["Failed requests", percent(pool?.errors)],
      ["First byte p50 / p99", firstByte(pool)],
      ...(pool?.queue ? queueFacts(pool.queue) : []),
      ...(pool?.cached ? cachedFacts(pool.cached.expected, pool.cached.found, pool.cached) : []),
      ["Proxies without counts", pool?.silent.join(", ") || "none"],
      ...(frozen ? [["Frozen", heldBy(frozen)]] : []),
    ]);
    this.offer([
      frozen ? ["Unfreeze weights", () => actions.unfreeze(name)] : ["Freeze weights", () => actions.freeze(name)],
    ]);
  }

  table(facts) {
    keyed(
      this.facts,
      facts,
      ([label]) => label,
      ([label]) => h("div", {}, h("dt", { text: label }), h("dd")),
      (element, [, value]) => setText(element.lastChild, value),
    );
  }

  offer(offers) {
    keyed(
      this.buttons,
      offers.filter(Boolean),
      ([label]) => label,
      ([label]) => h("button", { type: "button", text: label }),
      (element, [, action]) => {
        element.onclick = () => perform(action());
      },
    );
  }
}

/** The tokens that pickers recently expected in caches, the part that engines found, and where. */
function cachedFacts(expected, found, { sources = {}, seconds = null } = {}) {
  const places = Object.entries(sources).filter(([, count]) => count);
  const whole = places.reduce((sum, [, count]) => sum + count, 0);
  return [
    ["Cached, expected", seconds === null ? number(expected) : `${number(expected)} in ${span(seconds)}`],
    ["Cached, found", found === null ? "unknown" : percent(expected ? found / expected : null)],
    places.length && ["Found in", places.map(([name, count]) => `${name} ${percent(count / whole)}`).join(", ")],
  ].filter(Boolean);
}

/** The requests that wait at the picker for a replica, and the requests of the last minute. */
function queueFacts(queue) {
  const tenants = Object.entries(queue.tenants).map(([name, count]) => `${name} ${count}`);
  return [
    ["Waiting at the picker", String(queue.waiting)],
    tenants.length && ["Waiting by tenant", tenants.join(", ")],
    ["Mean wait", latency(queue.mean_wait_seconds)],
    ["Rejected, queue full", number(queue.refused_full)],
    ["Rejected, waited too long", number(queue.refused_late)],
  ].filter(Boolean);
}

/** Author, reason and end of an override. */
export function heldBy(item) {
  const until = item.until
    ? `until ${new Date(item.until).toLocaleString([], { hour12: false })}`
    : "until an operator removes it";
  return [item.author && `by ${item.author}`, item.reason && `“${item.reason}”`, until].filter(Boolean).join(", ");
}
