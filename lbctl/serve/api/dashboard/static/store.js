// The state of the page, from the stream of frames.

const KEPT_EVENTS = 500;

export const keyOf = (pool, name) => `${pool}\n${name}`;

export class Store extends EventTarget {
  constructor() {
    super();
    this.replicas = new Map();
    this.byPool = new Map();
    this.pools = [];
    this.status = null;
    this.proxies = [];
    this.rollouts = [];
    this.splits = [];
    this.events = [];
    this.at = 0;
    this.offset = 0;
  }

  /** The text of a view without content: its meaning, or that no data has arrived yet. */
  emptyText(text) {
    return this.status ? text : "Loading…";
  }

  /** The time on the server's clock, in milliseconds. */
  now() {
    return Date.now() + this.offset;
  }

  /** Take a frame of the stream, and report its changes: `change` with a set of sections as `detail`. */
  apply(frame) {
    const changed = new Set();
    if (frame.complete) {
      this.replicas.clear();
      changed.add("replicas");
    }
    for (const row of frame.replicas) this.replicas.set(keyOf(row.pool, row.name), row);
    for (const row of frame.gone) this.replicas.delete(keyOf(row.pool, row.name));
    if (frame.replicas.length || frame.gone.length) changed.add("replicas");
    for (const section of ["status", "pools", "proxies", "rollouts", "splits"]) {
      if (frame[section] === null) continue;
      this[section] = frame[section];
      changed.add(section);
    }
    this.at = Date.parse(frame.at);
    this.offset = this.at - Date.now();
    if (changed.has("replicas")) this.group();
    this.tell(changed);
  }

  /** Take an event of the control plane. Earlier events are repeated when the stream restarts. */
  note(kind, data, id) {
    if (this.events.some((event) => event.id === id)) return;
    this.events.push({ kind, data, id });
    this.events.sort((one, other) => one.id - other.id);
    if (this.events.length > KEPT_EVENTS) this.events.shift();
    this.tell(new Set(["events"]));
  }

  replica(pool, name) {
    return this.replicas.get(keyOf(pool, name));
  }

  override(kind, pool, replica = null) {
    const held = this.status?.overrides ?? [];
    return held.find((item) => item.kind === kind && item.pool === pool && item.replica === replica);
  }

  /** The override of this route's split. */
  heldSplit(route) {
    return this.status?.overrides.find((item) => item.kind === "split" && item.route === route);
  }

  group() {
    this.byPool = new Map();
    for (const row of this.replicas.values()) {
      if (!this.byPool.has(row.pool)) this.byPool.set(row.pool, []);
      this.byPool.get(row.pool).push(row);
    }
  }

  tell(changed) {
    this.dispatchEvent(new CustomEvent("change", { detail: changed }));
  }
}
