// The fleet in a few numbers, and what needs attention.

import * as actions from "/dashboard/actions.js";
import { latency, number, percent, plural, since, STATES } from "/dashboard/format.js";

/** The error rate from which a pool is shown as bad. */
const ALARMING = 0.05;
/** The kinds of problems that have their own alert, with a button or more text. */ const WITH_ALERT = ["files", "shrink", "picker", "metrics"];

/** State → the number of replicas in it. */
export function countStates(rows) {
  const counts = {};
  for (const row of rows) counts[row.state] = (counts[row.state] ?? 0) + 1;
  return counts;
}

/** The tiles: title, value, a short explanation, and the tone. */
export function tilesOf(store) {
  const { status } = store;
  const rows = [...store.replicas.values()];
  const proxies = Object.entries(status.proxies).filter(([state]) => state !== "GONE");
  const all = proxies.reduce((sum, [, count]) => sum + count, 0);
  const synced = status.proxies.SYNCED ?? 0;
  const rates = store.pools.map((pool) => pool.requests_per_second).filter((rate) => rate !== null);
  const moving = store.rollouts.filter((item) => ["progressing", "paused"].includes(item.phase));
  const counts = countStates(rows);
  const fine = counts.in ?? 0;
  return [
    [
      "Control plane",
      status.ready ? "ready" : "not ready",
      status.ready ? `up for ${since(status.since, store.now())}` : status.waiting,
      status.ready ? "good" : "bad",
    ],
    filesTile(status),
    all
      ? [
          "Proxies in sync",
          `${synced}/${all}`,
          unsynced(proxies) || "all acknowledged",
          synced === all ? "good" : "warn",
        ]
      : ["Proxies in sync", "–", "no proxy is connected", ""],
    ...pickerTile(store),
    ["Pools", String(store.pools.length), plural(rows.length, "replica"), ""],
    [
      "Replicas in",
      `${fine}/${rows.length}`,
      Object.keys(STATES)
        .filter((state) => state !== "in" && counts[state])
        .map((state) => `${counts[state]} ${state}`)
        .join(", ") || "all replicas get their share",
      fine === rows.length ? "good" : "warn",
    ],
    [
      "Requests/s",
      rates.length
        ? number(
            rates.reduce((one, other) => one + other, 0),
            1,
          )
        : "–",
      rates.length ? answers(store.pools) : "no proxy reports counts",
      store.pools.some((pool) => pool.errors > ALARMING) ? "bad" : "",
    ],
    [
      "Rollouts",
      String(moving.length),
      moving.map((item) => `${item.route} at ${item.percent ?? 0} %`).join(", ") || "none in progress",
      moving.length ? "info" : "",
    ],
  ];
}

/** Whether a rollback has published an earlier fleet, and is the only reason why the files are ignored. */
function isRolledBack({ fleet, served }) {
  return !fleet.valid && Boolean(served?.rollback) && !fleet.diagnostics.some((item) => item.severity === "error");
}

function filesTile(status) {
  if (!status.fleet.read) return ["Files", "being read", "", ""];
  if (isRolledBack(status)) return ["Files", "ignored", `${version(status)}rolled back until the files change`, "warn"];
  const problems = status.fleet.diagnostics.filter((item) => item.severity !== "note").length;
  return [
    "Files",
    status.fleet.valid ? "published" : "rejected",
    `${version(status)}${problems ? plural(problems, "diagnostic") : "no diagnostics"}`,
    status.fleet.valid ? "good" : "bad",
  ];
}

/** The picker, if a pool has `algorithm: pick`. */
function pickerTile(store) {
  const { picker, dry_run: dryRun } = store.status;
  if (!picker) return [];
  if (dryRun) return [["Picker", "–", "not started in a dry run", ""]];
  if (!picker.running) return [["Picker", "down", picker.reason ?? "it is starting", "bad"]];
  const restarts = picker.starts > 1 ? `, started ${picker.starts} times` : "";
  return [["Picker", "running", `for ${since(picker.since, store.now())}${restarts}${pickedText(store.pools)}${cachedText(store.pools)}`, "good"]];
}

/** The lowest share of picked requests of all pools in the last minute, as `, 98 % picked`. */
function pickedText(pools) {
  const parts = pools.map((pool) => pool.picked).filter((part) => part !== null && part !== undefined);
  return parts.length ? `, ${percent(Math.min(...parts))} picked` : "";
}

/** The lowest part of expected cached tokens that a pool's engines found, as `, 91 % of cached tokens found`. */
function cachedText(pools) {
  const ratios = pools.map((pool) => pool.cached?.ratio).filter((ratio) => ratio !== null && ratio !== undefined);
  return ratios.length ? `, ${percent(Math.min(...ratios))} of cached tokens found` : "";
}

/** The error rate and the time to first byte, each of the worst pool; empty if both are unknown. */
function answers(pools) {
  const known = (field) => pools.map((pool) => pool[field]).filter((value) => value !== null && value !== undefined);
  const [errors, slowest] = [known("errors"), known("first_byte_p99")];
  const most = Math.max(...errors);
  const share = pools.length > 1 ? `up to ${percent(most)} failed` : `${percent(most)} failed`;
  return [
    errors.length ? (most ? share : "none failed") : "",
    slowest.length ? `first byte p99 ${latency(Math.max(...slowest))}` : "",
  ]
    .filter(Boolean)
    .join(", ");
}

/** The proxies that are not in sync, as `1 stale, 2 nacked`. */
function unsynced(proxies) {
  const others = proxies.filter(([state]) => state !== "SYNCED");
  return others.map(([state, count]) => `${count} ${state.toLowerCase()}`).join(", ");
}

/** Problems and required actions: tone, text, and optionally a button with its action. */
export function alertsOf(status) {
  return [
    ...problemsOf(status, "critical", "bad"),
    status.fleet.read &&
      !status.fleet.valid &&
      !isRolledBack(status) && [
        "bad",
        status.fleet.refused ?? "The files were rejected.",
        ["Reload", () => actions.reload("")],
      ],

    status.fleet.shrink.length && [
      "warn",
      status.fleet.shrink.map((item) => item.text).join("; "),
      ["Reload", () => actions.reload(status.fleet.shrink.map((item) => item.message).join("; "))],
    ],

    status.snapshot?.from === "state" && ["warn", "The last valid fleet from the state directory is published, not the files."],
    status.served?.rollback && [
      "warn",
      `Rolled back by ${status.served.rollback.author}${status.served.rollback.reason ? ` (${status.served.rollback.reason})` : ""}: an earlier fleet is published until the files change.`,
    ],
    status.picker &&
      !status.picker.running &&
      !status.dry_run && [
        "bad",
        `The picker at ${status.picker.listens} is not running: ${status.picker.reason ?? "it is starting"}. The proxies fall back to “otherwise”.`,
      ],
    status.dry_run && ["info", "This is a dry run: nothing is sent to proxies."],
    ...status.fleet.diagnostics
      .filter((item) => item.severity !== "note")
      .map((item) => [item.severity === "error" ? "bad" : "warn", item.text]),
    ...status.unmatched.map((item) => [
      "warn",
      `The Envoy ${item.node} is connected but gets no configuration: ${item.reason}`,
    ]),
    ...status.control
      .filter((item) => item.mode !== "acting")
      .map((item) => ["warn", `Weights of ${item.pool} are ${item.mode}: ${item.reason ?? ""}`]),
    status.restart.length && [
      "info",
      `Changed in the files, effective after the next start: ${status.restart.join(", ")}`,
    ],
    status.sources.failing && [
      "warn",
      `${status.sources.failing} of ${plural(status.sources.total, "source")} of telemetry fail: ${Object.entries(
        status.sources.pools,
      )
        .map(([pool, count]) => `${count} in ${pool}`)
        .join(", ")}`,
    ],
    ...problemsOf(status, "warning", "warn"),
  ].filter(Boolean);
}

function problemsOf({ problems }, severity, tone) {
  return problems
    .filter((item) => item.severity === severity && !WITH_ALERT.includes(item.kind))
    .map((item) => [tone, `${item.text}. Run: ${item.command}`]);
}

/** The published version: the commit of the files, their digest, or the version of the snapshot, if known. */
function version({ served, snapshot }) {
  if (served?.commit) return `${served.commit.slice(0, 8)}${served.dirty ? " with changes" : ""}, `;
  const digest = served?.digest ?? snapshot?.version;
  return digest ? `${digest.slice(0, 8)}, ` : "";
}
