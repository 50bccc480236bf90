// The fleet at a glance: tiles, alerts, the pools, and the replicas of all or one of them.

import { perform } from "/dashboard/dialog.js";
import { h, keyed, setAttribute, setText } from "/dashboard/dom.js";
import { number, percent, plural, STATES } from "/dashboard/format.js";
import { alertsOf, countStates, tilesOf } from "/dashboard/glance.js";
import { ReplicaTable } from "/dashboard/table.js";

const ALERTS = 6;

export class Fleet {
  constructor(element, store, panel) {
    this.store = store;
    this.panel = panel;
    this.query = "";
    this.chosenPool = "";
    this.chosenState = "";
    this.tiles = h("div", { class: "tiles" });
    this.alerts = h("ul", { class: "alerts", "aria-label": "Alerts" });
    this.pools = h("div", { class: "pools" });
    this.states = h("div", { class: "chips", role: "group", "aria-label": "Replicas by state" });
    this.table = new ReplicaTable(
      (row) => panel.open(row.pool, row.name),
      (row) => this.held(row),
    );
    this.title = h("h2", { text: "Replicas" });
    this.loading = h("p", { class: "empty", text: store.emptyText("") });
    element.append(
      this.loading,
      this.tiles,
      this.alerts,
      h("h2", { text: "Pools" }),
      this.pools,
      h("div", { class: "table-head" }, this.title, this.states),
      this.table.element,
    );
  }

  update() {
    const { status } = this.store;
    this.loading.hidden = status !== null;
    this.table.element.hidden = status === null;
    if (!status) return;
    this.showTiles();
    this.showAlerts(status);
    this.showPools();
    this.showReplicas();
  }

  /** Show the replicas whose names, GPUs, addresses or reasons contain these words. */
  find(query) {
    this.query = query.trim().toLowerCase();
    this.showReplicas();
  }

  showTiles() {
    keyed(
      this.tiles,
      tilesOf(this.store),
      ([title]) => title,
      ([title]) =>
        h("div", { class: "tile" }, h("span", { class: "tile-title", text: title }), h("strong"), h("small")),
      (element, [, value, about, tone]) => {
        setText(element.children[1], value);
        setText(element.children[2], about ?? "");
        setAttribute(element, "data-tone", tone);
      },
    );
  }

  showAlerts(status) {
    const alerts = alertsOf(status);
    const shown = alerts.slice(0, ALERTS);
    if (alerts.length > ALERTS) shown.push(["info", `${alerts.length - ALERTS} more: run lbctl status to see all.`]);
    keyed(
      this.alerts,
      shown,
      ([, text]) => text,
      ([tone, text, offer]) =>
        h(
          "li",
          { "data-tone": tone },
          h("span", { text }),
          offer && h("button", { type: "button", text: offer[0], on: { click: () => perform(offer[1]()) } }),
        ),
      () => {},
    );
  }

  showPools() {
    keyed(
      this.pools,
      this.store.pools,
      (pool) => pool.name,
      (pool) => this.poolCard(pool),
      (element, pool) => {
        const rows = this.store.byPool.get(pool.name) ?? [];
        const counts = countStates(rows);
        const [, line, bar, rate] = element.children;
        setText(line, [pool.model, pool.algorithm].filter(Boolean).join(" · "));
        keyed(
          bar,
          Object.keys(STATES).filter((state) => counts[state]),
          (state) => state,
          (state) => h("i", { "data-state": state }),
          (part, state) => {
            part.style.flexGrow = counts[state];
            setAttribute(part, "title", `${counts[state]} ${state}`);
          },
        );
        setAttribute(
          bar,
          "aria-label",
          Object.entries(counts)
            .map(([state, count]) => `${count} ${state}`)
            .join(", "),
        );
        const full = rows.map((row) => row.kv_cache).filter((value) => value !== null);
        const cache = full.length ? `, KV ${percent(full.reduce((one, other) => one + other, 0) / full.length)}` : "";
        setText(
          rate,
          `${counts.in ?? 0} of ${rows.length} in${pool.requests_per_second === null ? "" : `, ${number(pool.requests_per_second, 1)} req/s`}${pool.errors ? `, ${percent(pool.errors)} failed` : ""}${pool.queue?.waiting ? `, ${pool.queue.waiting} waiting` : ""}${cache}${this.store.override("freeze", pool.name) ? ", frozen" : ""}`,
        );
        element.classList.toggle("chosen", this.chosenPool === pool.name);
        setAttribute(element.firstChild.firstChild, "aria-pressed", this.chosenPool === pool.name);
      },
    );
  }

  poolCard({ name }) {
    const choose = () => {
      this.chosenPool = this.chosenPool === name ? "" : name;
      this.update();
    };
    return h(
      "article",
      { class: "pool" },
      h(
        "header",
        {},
        h("button", {
          type: "button",
          class: "pool-name",
          text: name,
          title: `Show only the replicas of ${name}`,
          on: { click: choose },
        }),
        h("button", {
          type: "button",
          class: "quiet",
          text: "Details",
          "aria-label": `Details of ${name}`,
          on: { click: () => this.panel.open(name) },
        }),
      ),
      h("p", { class: "muted" }),
      h("div", { class: "state-bar", role: "img" }),
      h("p", { class: "pool-line" }),
    );
  }

  showReplicas() {
    const inPool = this.chosenPool
      ? (this.store.byPool.get(this.chosenPool) ?? [])
      : this.store.pools.flatMap((pool) => this.store.byPool.get(pool.name) ?? []);
    const matching = this.query
      ? inPool.filter((row) =>
          [row.pool, row.name, row.gpu, row.address, row.zone, row.state, row.reason].some((text) =>
            text?.toLowerCase().includes(this.query),
          ),
        )
      : inPool;
    const counts = countStates(matching);
    const states = Object.keys(STATES).filter((state) => counts[state] || state === this.chosenState);
    keyed(
      this.states,
      states,
      (state) => state,
      (state) =>
        h("button", {
          type: "button",
          class: "chip",
          "data-state": state,
          title: STATES[state],
          on: { click: () => this.chooseState(state) },
        }),
      (element, state) => {
        setText(element, `${state} ${counts[state] ?? 0}`);
        setAttribute(element, "aria-pressed", this.chosenState === state);
      },
    );
    const rows = this.chosenState ? matching.filter((row) => row.state === this.chosenState) : matching;
    setText(
      this.title,
      [plural(rows.length, "replica"), this.chosenPool && `of ${this.chosenPool}`, this.query && `with “${this.query}”`]
        .filter(Boolean)
        .join(" "),
    );
    this.table.show(rows);
  }

  chooseState(state) {
    this.chosenState = this.chosenState === state ? "" : state;
    this.showReplicas();
  }

  held(row) {
    return this.weights?.get(`${row.pool}\n${row.name}`) ?? "";
  }

  /** Index the weight overrides, so that a row need not search for its own. */
  noteOverrides() {
    const held = this.store.status.overrides.filter((item) => item.kind === "weight");
    this.weights = new Map(held.map((item) => [`${item.pool}\n${item.replica}`, `weight override ${item.value}`]));
  }
}
