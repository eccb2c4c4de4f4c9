// Data from the server, or from the files of a static copy; changes that the server reports.
import { useEffect, useState } from "preact/hooks";

export const isStatic = document.documentElement.hasAttribute("data-static");

export interface RunEntry {
  name: string;
  path: string;
  error?: string;
  evaluation?: boolean;
  algorithm: string;
  script: string;
  seed: number;
  versions: number;
  total: number | null;
  metrics: { step: number | null; began: number | null; last: number | null; names: string[]; values: Record<string, number> };
  updated: number;
  model: string | null;
  overrides: string[];
}

export interface Notes {
  id: string;
  tags: string[];
  note: string;
  quality: number | null;
  exclude: boolean;
}

export interface Row {
  step: number;
  id: string;
  group: number;
  sample: number;
  parent?: string;
  forked_at: number | null;
  task_index: number;
  task: string;
  status: string;
  truncated_by?: string;
  dropped?: boolean;
  reward: number;
  reward_parts: Record<string, number | null>;
  advantage: number | null;
  steps: number;
  tokens: number;
  tool_calls: number;
  seconds: number;
  policy_version: number;
  error?: string;
  notes?: Notes;
}

export interface Page<T> {
  total: number;
  matching: number;
  rows: T[];
  parts: string[];
  damaged: string[];
}

export type Params = Record<string, string | number | undefined>;

/** `name?a=1&b=2`, without encoding: the key of a file of a static copy. */
function keyOf(name: string, params: Params): string {
  const pairs = Object.entries(params).filter(([, value]) => value !== undefined);
  return pairs.length ? `${name}?${pairs.map(([key, value]) => `${key}=${value}`).join("&")}` : name;
}

/** As `file_name` in src/view/export.rs. */
function fileName(key: string): string {
  const bytes = new TextEncoder().encode(key);
  const of = (byte: number) => {
    const char = String.fromCharCode(byte);
    return /[A-Za-z0-9\-_.=]/.test(char) ? char : `~${byte.toString(16).padStart(2, "0")}`;
  };
  return `data/${Array.from(bytes, of).join("")}.js`;
}

const waiting = new Map<string, (value: unknown) => void>();
const loaded = new Map<string, Promise<unknown>>();
(window as unknown as Record<string, unknown>).r1data = (key: string, value: unknown) => waiting.get(key)?.(value);

function fromFile(key: string): Promise<unknown> {
  const before = loaded.get(key);
  if (before) return before;
  const read = new Promise((resolve, reject) => {
    waiting.set(key, resolve);
    const script = document.createElement("script");
    script.src = fileName(key);
    script.onerror = () => reject(new Error("This copy does not have it: it was exported without these trajectories."));
    document.head.append(script);
  });
  loaded.set(key, read);
  return read;
}

export async function get<T>(name: string, params: Params = {}): Promise<T> {
  if (isStatic) return (await fromFile(keyOf(name, params))) as T;
  const pairs = Object.entries(params).filter(([, value]) => value !== undefined);
  const query = new URLSearchParams(pairs.map(([key, value]) => [key, String(value)]));
  return answer(await fetch(`api/${name}?${query}`));
}

export async function post<T>(name: string, params: Params, body: unknown): Promise<T> {
  const query = new URLSearchParams(Object.entries(params).map(([key, value]) => [key, String(value)]));
  const headers = { "Content-Type": "application/json" };
  return answer(await fetch(`api/${name}?${query}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function answer<T>(response: Response): Promise<T> {
  const value = await response.json();
  if (!response.ok) throw new Error([value.detail, value.hint].filter(Boolean).join(". "));
  return value as T;
}

// Changes.

type Signatures = Record<string, unknown>;
let signatures: Signatures | undefined;
const listeners = new Set<(changed: Set<string>) => void>();
export let connected = isStatic;
const states = new Set<(connected: boolean) => void>();

function setConnected(now: boolean): void {
  connected = now;
  states.forEach((state) => state(now));
}

export function connect(): void {
  if (isStatic) return;
  const source = new EventSource("api/events");
  source.onopen = () => setConnected(true);
  source.onerror = () => setConnected(false);
  source.onmessage = (event) => {
    const now = JSON.parse(event.data) as Signatures;
    const before = signatures;
    signatures = now;
    if (!before) return;
    const names = new Set([...Object.keys(now), ...Object.keys(before)]);
    const changed = [...names].filter((name) => JSON.stringify(now[name]) !== JSON.stringify(before[name]));
    if (changed.length) listeners.forEach((listener) => listener(new Set(changed)));
  };
}

/** Calls `listener` with the names of runs whose files have changed. */
export function onChange(listener: (changed: Set<string>) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useConnected(): boolean {
  const [state, set] = useState(connected);
  useEffect(() => {
    states.add(set);
    return () => void states.delete(set);
  }, []);
  return state;
}

/** The number of changes of a run, or of all runs; a new number means that data is to be read again. */
export function useVersion(run?: string): number {
  const [version, set] = useState(0);
  useEffect(() => onChange((changed) => (run === undefined || changed.has(run)) && set((old) => old + 1)), [run]);
  return version;
}

export interface Loaded<T> {
  data?: T;
  error?: string;
}

/** Data that is read again when the run changes. The old data stays until the new one is there. */
export function useJson<T>(name: string, params: Params = {}, run?: string): Loaded<T> {
  const [state, set] = useState<Loaded<T> & { key?: string }>({});
  const version = useVersion(run);
  const key = keyOf(name, params);
  useEffect(() => {
    let current = true;
    get<T>(name, params).then(
      (data) => current && set({ data, key }),
      (error: Error) => current && set({ error: error.message, key }),
    );
    return () => void (current = false);
  }, [key, version]);
  return state.key === key ? state : {};
}
