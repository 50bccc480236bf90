// Formats numbers and times. An unknown value is a dash, never 0.

export const UNKNOWN = "–";

/** The states of a replica and their meanings, the better ones first. */
export const STATES = {
  in: "gets its share",
  ramping: "its weight rises in steps",
  slow: "slower than its peers",
  hot: "fuller or hotter than its peers",
  unknown: "no report shows that it is reachable, or that it answers",
  starting: "its first checks are not finished",
  asleep: "gets no requests until its engine is awake",
  draining: "finishes its requests",
  drained: "gets no requests",
  ejected: "gets no requests because of failures",
  down: "a check fails, or lbctl cannot connect",
  removed: "no longer in any proxy",
};

export function percent(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const points = value * 100;
  if (points === 0) return "0 %";
  return `${points < 0.995 ? points.toFixed(2) : points < 9.95 ? points.toFixed(1) : Math.round(points)} %`;
}

export function number(value, digits = 0) {
  if (value === null || value === undefined) return UNKNOWN;
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(2)}M`;
  if (Math.abs(value) >= 10000) return `${(value / 1000).toFixed(1)}k`;
  return value.toFixed(Math.abs(value) >= 100 ? 0 : digits);
}

export function degrees(value) {
  return value === null || value === undefined ? UNKNOWN : `${Math.round(value)} °C`;
}

/** Seconds of a latency, in milliseconds below one second. */
export function latency(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 1 : 0)} s`;
}

/** The times to first byte, 50th and 99th percentile. */
export function firstByte(row) {
  return row?.first_byte_p50 == null ? UNKNOWN : `${latency(row.first_byte_p50)} / ${latency(row.first_byte_p99)}`;
}

export function clock(time) {
  return new Date(time).toLocaleTimeString([], { hour12: false });
}

export function dateAndClock(time) {
  const date = new Date(time);
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock(time) : `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${clock(time)}`;
}

/** Seconds as `45 s`, `12 min`, `3 h`, `2 d`. */
export function span(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function since(time, now) {
  return time ? span((now - Date.parse(time)) / 1000) : "";
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

/** A typed duration (`90s`, `10m`, `2h`, `1d`) in seconds; null if it is empty; NaN if it is invalid. */
export function seconds(text) {
  if (!text.trim()) return null;
  const match = /^(\d+(?:\.\d+)?)\s*(s|m|h|d)$/.exec(text.trim());
  return match ? Number(match[1]) * { s: 1, m: 60, h: 3600, d: 86400 }[match[2]] : NaN;
}
