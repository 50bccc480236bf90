// The fleet at a glance: tiles, what needs attention, the pools, and the replicas of all or one of them.

import * as actions from "/dashboard/actions.js";
import { perform } from "/dashboard/dialog.js";
import { h, keyed, setAttribute, setText } from "/dashboard/dom.js";
import { number, percent, plural, since, STATES } from "/dashboard/format.js";
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
    this.alerts = h("ul", { class: "alerts", "aria-label": "What needs attention" });
    this.pools = h("div", { class: "pools" });
    this.states = h("div", { class: "chips", role: "group", "aria-label": "Replicas by state" });
    this.table = new ReplicaTable((row) => panel.open(row.pool, row.name), (row) => this.held(row));
    this.title = h("h2", { text: "Replicas" });
    element.append(this.tiles, this.alerts, h("h2", { text: "Pools" }), this.pools, h("div", { class: "table-head" }, this.title, this.states), this.table.element);
  }

  update() {
    const { status } = this.store;
    if (!status) return;
    this.showTiles(status);
    this.showAlerts(status);
    this.showPools();
    this.showReplicas();
  }

  /** Show the replicas whose names, GPUs, addresses or reasons hold these words. */
  find(query) {
    this.query = query.trim().toLowerCase();
    this.showReplicas();
  }

  counts(rows) {
    const counts = {};
    for (const row of rows) counts[row.state] = (counts[row.state] ?? 0) + 1;
    return counts;
  }

  showTiles(status) {
    const rows = [...this.store.replicas.values()];
    const proxies = Object.entries(status.proxies).filter(([state]) => state !== "GONE");
    const all = proxies.reduce((sum, [, count]) => sum + count, 0);
    const synced = status.proxies.SYNCED ?? 0;
    const rates = this.store.pools.map((pool) => pool.requests_per_second).filter((rate) => rate !== null);
    const moving = this.store.rollouts.filter((item) => ["progressing", "paused"].includes(item.phase));
    const counts = this.counts(rows);
    const fine = counts.in ?? 0;
    const problems = status.fleet.diagnostics.filter((item) => item.severity !== "note").length;
    const tiles = [
      ["Control plane", status.ready ? "ready" : "not ready", status.ready ? `up for ${since(status.since, this.store.now())}` : status.waiting, status.ready ? "good" : "bad"],
      ["Files", status.fleet.valid ? "served" : "refused", `${version(status)}${problems ? plural(problems, "diagnostic") : "no diagnostics"}`, status.fleet.valid ? "good" : "bad"],
      ["Proxies in sync", `${synced}/${all}`, proxies.filter(([state]) => state !== "SYNCED").map(([state, count]) => `${count} ${state.toLowerCase()}`).join(", ") || "all acknowledged", synced === all ? "good" : "warn"],
      ["Pools", String(this.store.pools.length), plural(rows.length, "replica"), ""],
      ["Replicas in", `${fine}/${rows.length}`, Object.keys(STATES).filter((state) => state !== "in" && counts[state]).map((state) => `${counts[state]} ${state}`).join(", ") || "all get their share", fine === rows.length ? "good" : "warn"],
      ["Requests/s", rates.length ? number(rates.reduce((one, other) => one + other, 0), 1) : "–", rates.length ? "over the last minute" : "no proxy reports counts", ""],
      ["Rollouts", String(moving.length), moving.map((item) => `${item.route} at ${item.percent ?? 0} %`).join(", ") || "none moves", moving.length ? "info" : ""],
    ];
    keyed(this.tiles, tiles, ([title]) => title, ([title]) => h("div", { class: "tile" }, h("span", { class: "tile-title", text: title }), h("strong"), h("small")), (element, [, value, about, tone]) => {
      setText(element.children[1], value);
      setText(element.children[2], about ?? "");
      setAttribute(element, "data-tone", tone);
    });
  }

  showAlerts(status) {
    const alerts = [
      !status.fleet.valid && ["bad", status.fleet.refused ?? "The files are refused.", ["Reload", () => actions.reload("")]],
      status.fleet.shrink.length && ["warn", status.fleet.shrink.map((item) => item.text).join("; "), ["Reload", () => actions.reload(status.fleet.shrink.map((item) => item.message).join("; "))]],
      status.snapshot?.from === "state" && ["warn", "The last good fleet of the state is served, not the files."],
      status.served?.rollback && ["warn", `Rolled back by ${status.served.rollback.author}${status.served.rollback.reason ? ` (${status.served.rollback.reason})` : ""}: an earlier fleet is served until the files change.`],
      status.dry_run && ["info", "This is a dry run: nothing is sent to proxies."],
      ...status.fleet.diagnostics.filter((item) => item.severity !== "note").map((item) => [item.severity === "error" ? "bad" : "warn", item.text]),
      ...status.unmatched.map((item) => ["warn", `The Envoy ${item.node} is connected and is given nothing: ${item.reason}`]),
      ...status.control.filter((item) => item.mode !== "acting").map((item) => ["warn", `Weights of ${item.pool} are ${item.mode}: ${item.words ?? ""}`]),
      status.restart.length && ["info", `Changed in the files, and taken at the next start: ${status.restart.join(", ")}`],
      status.sources.failing && ["warn", `${status.sources.failing} of ${plural(status.sources.total, "source")} of telemetry fail: ${Object.entries(status.sources.pools).map(([pool, count]) => `${count} in ${pool}`).join(", ")}`],
    ].filter(Boolean);
    const shown = alerts.slice(0, ALERTS);
    if (alerts.length > ALERTS) shown.push(["info", `${alerts.length - ALERTS} more: lbctl status shows all.`]);
    keyed(this.alerts, shown, ([, text]) => text, ([tone, text, offer]) => h("li", { "data-tone": tone }, h("span", { text }), offer && h("button", { type: "button", text: offer[0], on: { click: () => perform(offer[1]()) } })), () => {});
  }

  showPools() {
    keyed(this.pools, this.store.pools, (pool) => pool.name, (pool) => this.poolCard(pool), (element, pool) => {
      const rows = this.store.byPool.get(pool.name) ?? [];
      const counts = this.counts(rows);
      const [, line, bar, rate] = element.children;
      setText(line, [pool.model, pool.algorithm].filter(Boolean).join(" · "));
      keyed(bar, Object.keys(STATES).filter((state) => counts[state]), (state) => state, (state) => h("i", { "data-state": state }), (part, state) => {
        part.style.flexGrow = counts[state];
        setAttribute(part, "title", `${counts[state]} ${state}`);
      });
      setAttribute(bar, "aria-label", Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", "));
      const full = rows.map((row) => row.kv_cache).filter((value) => value !== null);
      const cache = full.length ? `, KV ${percent(full.reduce((one, other) => one + other, 0) / full.length)}` : "";
      setText(rate, `${counts.in ?? 0} of ${rows.length} in${pool.requests_per_second === null ? "" : `, ${number(pool.requests_per_second, 1)} req/s`}${cache}${this.store.override("freeze", pool.name) ? ", frozen" : ""}`);
      element.classList.toggle("chosen", this.chosenPool === pool.name);
      setAttribute(element.firstChild.firstChild, "aria-pressed", this.chosenPool === pool.name);
    });
  }

  poolCard({ name }) {
    const choose = () => {
      this.chosenPool = this.chosenPool === name ? "" : name;
      this.update();
    };
    return h("article", { class: "pool" },
      h("header", {}, h("button", { type: "button", class: "pool-name", text: name, title: `Show only the replicas of ${name}`, on: { click: choose } }),
        h("button", { type: "button", class: "quiet", text: "Details", "aria-label": `Details of ${name}`, on: { click: () => this.panel.open(name) } })),
      h("p", { class: "muted" }), h("div", { class: "state-bar", role: "img" }), h("p", { class: "pool-line" }));
  }

  showReplicas() {
    const inPool = this.chosenPool ? this.store.byPool.get(this.chosenPool) ?? [] : this.store.pools.flatMap((pool) => this.store.byPool.get(pool.name) ?? []);
    const matching = this.query ? inPool.filter((row) => [row.pool, row.name, row.gpu, row.address, row.zone, row.state, row.reason].some((text) => text?.toLowerCase().includes(this.query))) : inPool;
    const counts = this.counts(matching);
    const states = Object.keys(STATES).filter((state) => counts[state] || state === this.chosenState);
    keyed(this.states, states, (state) => state, (state) => h("button", { type: "button", class: "chip", "data-state": state, title: STATES[state], on: { click: () => this.chooseState(state) } }), (element, state) => {
      setText(element, `${state} ${counts[state] ?? 0}`);
      setAttribute(element, "aria-pressed", this.chosenState === state);
    });
    const rows = this.chosenState ? matching.filter((row) => row.state === this.chosenState) : matching;
    setText(this.title, [plural(rows.length, "replica"), this.chosenPool && `of ${this.chosenPool}`, this.query && `with “${this.query}”`].filter(Boolean).join(" "));
    this.table.show(rows);
  }

  chooseState(state) {
    this.chosenState = this.chosenState === state ? "" : state;
    this.showReplicas();
  }

  held(row) {
    const kinds = (this.heldBy ?? new Map()).get(`${row.pool}\n${row.name}`);
    return kinds ?? "";
  }

  /** Note which replicas an operator holds, so that a row need not search for it. */
  noteOverrides() {
    this.heldBy = new Map();
    for (const item of this.store.status?.overrides ?? []) {
      if (item.replica === null) continue;
      const key = `${item.pool}\n${item.replica}`;
      const words = item.kind === "drain" ? "drained by hand" : `weight ${item.value} held`;
      this.heldBy.set(key, [this.heldBy.get(key), words].filter(Boolean).join("; "));
    }
  }
}

/** What is served: the commit of the files, their digest, or the version of the snapshot, whichever the server tells. */
function version({ served, snapshot }) {
  if (served?.commit) return `${served.commit.slice(0, 8)}${served.dirty ? " with changes" : ""}, `;
  const digest = served?.digest ?? snapshot?.version;
  return digest ? `${digest.slice(0, 8)}, ` : "";
}
