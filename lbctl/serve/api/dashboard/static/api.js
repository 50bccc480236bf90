// Requests to the API. The token is kept only in this module: it is lost with the tab, and never in a URL or storage.

let token = "";
const watchers = new Set();

export const hasToken = () => token !== "";

export function setToken(value) {
  token = value.trim();
  for (const watcher of watchers) watcher();
}

export function onToken(watcher) {
  watchers.add(watcher);
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function headers(more = {}) {
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

/** The server's message for a response whose status is not 200. */
export async function refusal(response) {
  try {
    const { error, status } = await response.json();
    return new ApiError(response.status, error ?? status ?? response.statusText);
  } catch {
    return new ApiError(response.status, `${response.status} ${response.statusText}`);
  }
}

async function json(path, init) {
  let response;
  try {
    response = await fetch(path, { credentials: "omit", redirect: "error", ...init });
  } catch (error) {
    throw new ApiError(0, `lbctl serve does not answer: ${error.message}`);
  }
  if (!response.ok) throw await refusal(response);
  return response.json();
}

export const read = (path) => json(path, { headers: headers() });

export function write(method, path, body) {
  return json(path, { method, headers: headers({ "content-type": "application/json" }), body: JSON.stringify(body) });
}

export function series(pool, metric, replica = "", points = 240) {
  return read(`/api/v1/series?${new URLSearchParams({ pool, metric, replica, points })}`);
}
