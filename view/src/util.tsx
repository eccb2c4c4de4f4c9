// Numbers, times, links, long texts.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

/** A number with four significant digits. */
export function num(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function count(value: number): string {
  return value.toLocaleString("en");
}

export function plural(value: number, word: string): string {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function duration(seconds: number): string {
  if (seconds === 0) return "0 s";
  if (seconds > 0 && seconds < 0.1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}

/** The route in the part of the address after `#`. */
export interface Route {
  parts: string[];
  params: URLSearchParams;
}

export function route(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), params: new URLSearchParams(query) };
}

export function href(parts: (string | number)[], params: Record<string, string | undefined> = {}): string {
  const pairs = Object.entries(params).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const query = pairs.length ? `?${new URLSearchParams(pairs)}` : "";
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${query}`;
}

/** Changes parameters of the address without a new entry in the history. */
export function setParams(changes: Record<string, string | undefined>): void {
  const { parts, params } = route();
  for (const [key, value] of Object.entries(changes)) {
    if (value) params.set(key, value);
    else params.delete(key);
  }
  history.replaceState(null, "", href(parts, Object.fromEntries(params)));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [now, set] = useState(route);
  useEffect(() => {
    const read = () => set(route());
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  return now;
}

/** A setting of the page that stays in this browser. */
export function useStored<T>(key: string, initial: T): [T, (value: T) => void] {
  const [value, set] = useState<T>(() => {
    try {
      const text = localStorage.getItem(`r1.${key}`);
      return text === null ? initial : (JSON.parse(text) as T);
    } catch {
      return initial;
    }
  });
  const store = (next: T) => {
    set(next);
    try {
      localStorage.setItem(`r1.${key}`, JSON.stringify(next));
    } catch {
      // A browser may refuse to store anything.
    }
  };
  return [value, store];
}

const FIRST = 4000;
const MORE = 100_000;
// C0 and C1 controls without tab and line feed, and characters that change the direction of text.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** The text with control characters as code points. */
export function visible(text: string): string {
  return text.replace(CONTROLS, (char) => `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** A text of any length: more of it on request. */
export function LongText({ text, first = FIRST }: { text: string; first?: number }) {
  const [shown, set] = useState(first);
  const rest = text.length - shown;
  return (
    <>
      <span class="text">{visible(text.slice(0, shown))}</span>
      {rest > 0 && (
        <button class="more" onClick={() => set(shown + MORE)}>
          Show {count(Math.min(rest, MORE))} of {count(rest)} more characters
        </button>
      )}
    </>
  );
}

export function CopyButton({ text, children }: { text: string; children: ComponentChildren }) {
  const [done, set] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without the permission: through a selection.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return (
    <button class="copy" title={text} onClick={copy}>
      <span aria-live="polite">{done ? "Copied" : children}</span>
    </button>
  );
}

export function Failed({ error }: { error: string }) {
  return <p class="error" role="alert">{visible(error)}</p>;
}

/** A word of a shell command, quoted if needed. */
export function quoted(word: string): string {
  return /^[\w./:=-]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`;
}

export function Status({ status, by, dropped }: { status: string; by?: string | undefined; dropped?: boolean | undefined }) {
  const kind = status === "terminated" ? "ok" : status === "truncated" ? "warn" : "bad";
  return <span class={`status ${kind}`}>{status === "truncated" && by ? `truncated: ${by}` : status.replace("_", " ")}{dropped && ", dropped"}</span>;
}
