// Every action: its name, a sentence about its effect, its fields, and its request.

import { write } from "/dashboard/api.js";
import { dateAndClock, percent, plural, seconds, span } from "/dashboard/format.js";

const TTL = {
  name: "ttl",
  label: "Ends after",
  placeholder: "never; 30m, 2h, 1d",
  check: (text) => (Number.isNaN(seconds(text)) ? "enter a duration, for example 90s, 30m, 2h or 1d" : ""),
};
const hold = (body, reason, ttl) => write("POST", "/api/v1/overrides", { ...body, reason, ttl: seconds(ttl) });
const release = (body) => write("DELETE", "/api/v1/overrides", body);

export function drain(row, store) {
  const others = (store.byPool.get(row.pool) ?? []).filter((item) => item.name !== row.name && item.share > 0).length;
  const rest = others
    ? `its share of ${percent(row.share)} goes to ${plural(others, "other replica")}`
    : "no other replica of the pool gets requests, so new requests will fail or use the fallback";
  return {
    title: `Drain ${row.name}`,
    verb: "Drain",
    danger: others === 0,
    effect: `${row.name} of the pool ${row.pool} gets no new requests and finishes its current ones; ${rest}.`,
    fields: [TTL],
    run: ({ reason, ttl }) => hold({ kind: "drain", pool: row.pool, replica: row.name }, reason, ttl),
  };
}

export function undrain(row) {
  return {
    title: `Undrain ${row.name}`,
    verb: "Undrain",
    noReason: true,
    effect: `${row.name} of the pool ${row.pool} gets requests again, with slow start if the pool uses it.`,
    run: () => release({ kind: "drain", pool: row.pool, replica: row.name }),
  };
}

export function setWeight(row) {
  return {
    title: `Override the weight of ${row.name}`,
    verb: "Override the weight",
    effect: `The weight of ${row.name} in the pool ${row.pool} no longer follows its signals. Its capacity is ${row.capacity}, its current weight ${row.weight}.`,
    fields: [
      {
        name: "value",
        label: "Weight",
        value: String(row.weight),
        check: (text) => (Number(text) > 0 ? "" : "enter a number above 0 (to send no requests, drain the replica)"),
      },
      TTL,
    ],
    run: ({ reason, ttl, value }) =>
      hold({ kind: "weight", pool: row.pool, replica: row.name, value: Number(value) }, reason, ttl),
  };
}

export function unsetWeight(row) {
  return {
    title: `Remove the weight override of ${row.name}`,
    verb: "Remove the override",
    noReason: true,
    effect: `The weight of ${row.name} in the pool ${row.pool} follows its capacity and its signals again.`,
    run: () => release({ kind: "weight", pool: row.pool, replica: row.name }),
  };
}

export function freeze(pool) {
  return {
    title: `Freeze ${pool}`,
    verb: "Freeze",
    effect: `The weights of the pool ${pool} no longer change with its signals. Ejections, drains and checks continue.`,
    fields: [TTL],
    run: ({ reason, ttl }) => hold({ kind: "freeze", pool }, reason, ttl),
  };
}

export function unfreeze(pool) {
  return {
    title: `Unfreeze ${pool}`,
    verb: "Unfreeze",
    noReason: true,
    effect: `The weights of the pool ${pool} follow their signals again.`,
    run: () => release({ kind: "freeze", pool }),
  };
}

export function reload(shrink) {
  return {
    title: "Reload the files",
    verb: "Reload",
    noReason: true,
    effect: shrink
      ? `serve reads the files again. Confirm these removals: ${shrink}`
      : "serve reads the files again, and publishes them if they are valid. It also sends resources that Envoys have rejected again.",
    fields: shrink ? [{ name: "allow", label: "Publish the files with these removals", type: "checkbox" }] : [],
    run: ({ allow }) => write("POST", "/api/v1/reload", { allow_shrink: Boolean(allow) }),
    done: ({ result, refused }) => [`The files were read: ${result}.`, refused].filter(Boolean).join(" "),
    wrong: ({ result }) => !["published", "unchanged"].includes(result),
  };
}

/** Publish an earlier fleet again. `entry`: an entry of the history. */
export function rollback(entry) {
  return {
    title: `Roll back to ${entry.digest.slice(0, 8)}`,
    verb: "Roll back",
    effect: `The fleet of ${dateAndClock(entry.at)} (${plural(entry.pools, "pool")}, ${plural(entry.replicas, "replica")}) is published again until the files change. Certificates and keys keep their current content.`,
    fields: [
      { name: "allow", label: "Publish it even if it removes more replicas or keys than max_shrink allows", type: "checkbox" },
    ],
    run: ({ reason, allow }) =>
      write("POST", "/api/v1/rollback", { digest: entry.digest, reason, allow_shrink: Boolean(allow) }),
    done: ({ result, refused, digest, diagnostics }) =>
      ROLLED_BACK.includes(result)
        ? `${digest.slice(0, 8)} is published.`
        : [
            `Nothing has changed: ${result}.`,
            refused,
            ...diagnostics.filter((item) => item.severity === "error").map((item) => item.text),
          ]
            .filter(Boolean)
            .join(" "),
    wrong: ({ result }) => !ROLLED_BACK.includes(result),
  };
}
const ROLLED_BACK = ["rolled_back", "published", "unchanged"];

const wholeNumber = (text) => (/^\d{1,9}$/.test(text.trim()) ? "" : "enter a whole number, 0 or more");

export function setSplit({ route, shares }, rollout) {
  const pools = Object.keys(shares);
  return {
    title: `Override the split of ${route}`,
    verb: "Override the split",
    effect:
      `The requests of ${route} go to its pools by these shares, relative to each other, until the override is removed or the files change the split.` +
      (rollout ? ` The override replaces the split of the rollout to ${rollout.to}, which continues in the background.` : ""),
    fields: [
      ...pools.map((pool) => ({
        name: `share ${pool}`,
        label: pool,
        value: String(shares[pool]),
        check: (text, values) =>
          wholeNumber(text) ||
          (pools.some((each) => Number(values[`share ${each}`]) > 0) ? "" : "at least one share must be above 0"),
      })),
      TTL,
    ],
    run: ({ reason, ttl, ...values }) => {
      const held = Object.fromEntries(pools.map((pool) => [pool, Number(values[`share ${pool}`])]));
      return hold({ kind: "split", route, shares: held }, reason, ttl);
    },
  };
}

export function unsetSplit({ route }, rollout) {
  return {
    title: `Remove the split override of ${route}`,
    verb: "Remove the override",
    noReason: true,
    effect: `${route} returns to the split of ${rollout ? "its rollout or of the files" : "the files"}.`,
    run: () => release({ kind: "split", route }),
  };
}

export function setShare(item) {
  return {
    title: `Set the share of ${item.to}`,
    verb: "Set the share",
    effect: `${item.to} gets this share of ${item.route}, and the rollout pauses there until an operator resumes or promotes it.`,
    fields: [
      {
        name: "percent",
        label: "Percent",
        value: String(item.percent ?? 0),
        check: (text) =>
          text.trim() && Number(text) >= 0 && Number(text) <= 100 ? "" : "enter a number from 0 to 100",
      },
    ],
    run: ({ reason, percent: share }) =>
      write("POST", "/api/v1/rollouts", { route: item.route, action: "set", percent: Number(share), reason }),
  };
}

const ROLLOUT = {
  start: [
    "Start",
    (item) =>
      `${item.to} gets ${item.steps[0].percent} % of ${item.route}, the first of ${plural(item.steps.length, "step")}.`,
  ],
  promote: ["Promote", (item) => `${next(item)} The hold of the current step ends early.`],
  pause: ["Pause", (item) => `${item.to} keeps its ${item.percent} % of ${item.route} until an operator resumes the rollout.`],
  resume: [
    "Resume",
    (item) => `The rollout of ${item.route} continues at ${item.steps[item.step - 1].percent} %${hold_of(item)}.`,
  ],
  abort: [
    "Abort",
    (item) => `${item.route} returns to the split in the files at once: ${item.to} gets no share from this rollout.`,
  ],
};

function next(item) {
  const step = item.steps[item.step];
  return step
    ? `${item.to} goes from ${item.percent ?? 0} % to ${step.percent} % of ${item.route}.`
    : `All steps are done: ${item.to} keeps ${item.percent} % of ${item.route}.`;
}

function hold_of(item) {
  const { hold: time } = item.steps[item.step - 1] ?? {};
  return time ? `, with a hold of ${span(time)}` : "";
}

export function rollout(item, action) {
  const [verb, effect] = ROLLOUT[action];
  return {
    title: `${verb} the rollout of ${item.route}`,
    verb,
    danger: action === "abort",
    effect: effect(item),
    run: ({ reason }) => write("POST", "/api/v1/rollouts", { route: item.route, action, reason }),
  };
}
