// The server's answers, and its refusals in plain words.

const KEY = "energate-api-key";

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

// Addresses are relative, so that the page also works behind a proxy that puts it under a prefix.
export async function ask(address, body) {
  const options = {};
  if (body !== undefined) {
    const headers = { "Content-Type": "application/json" };
    Object.assign(options, { method: "POST", body: JSON.stringify(body), headers });
  }
  const answer = await fetched(address, options);
  const content = await answer.json().catch(() => null);
  if (content === null) throw new Refused(answer.status, describe(answer.status, null));
  return content;
}

// An answer that is no refusal; the key goes along, where there is one.
export async function fetched(address, options = {}) {
  const key = hasKey() ? { "X-API-Key": sessionStorage.getItem(KEY) } : {};
  let answer;
  try {
    answer = await fetch(address, { ...options, headers: { ...options.headers, ...key } });
  } catch {
    throw new Refused(0, "The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  throw new Refused(answer.status, describe(answer.status, await answer.json().catch(() => null)));
}

function describe(status, content) {
  const detail = content?.detail;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) {
    const place = ({ loc }) => (loc ?? []).filter((part) => part !== "body").join(" ");
    return detail.map((each) => [place(each), each.msg].filter(Boolean).join(": ")).join("; ");
  }
  return `The server answered ${status}${status >= 500 ? "; its log says why" : ""}.`;
}

// The latest question wins: one at a time is asked, since the server computes to the end what it has begun, and those that
// came in the meantime but for the last are never sent.
export function latest(address, wait) {
  let timer = 0;
  let running = Promise.resolve();
  let asked = 0;
  return (body) =>
    new Promise((resolve, reject) => {
      clearTimeout(timer);
      asked += 1;
      const number = asked;
      timer = setTimeout(async () => {
        await running;
        if (number !== asked) return;
        running = ask(address, body).then(
          (answer) => number === asked && resolve(answer),
          (error) => number === asked && reject(error),
        );
      }, wait);
    });
}
