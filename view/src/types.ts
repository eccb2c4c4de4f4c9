// The answer about one trajectory.
import type { Row } from "./data";

export interface ToolCall {
  id?: string;
  name: string;
  arguments: unknown;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string | ({ type: "text"; text: string } | { type: "image" | "video"; hash: string })[];
  reasoning_content?: string | null;
  tool_calls?: ToolCall[];
  name?: string | null;
}

export interface Tool {
  name: string;
  arguments: unknown;
  kind?: string;
  output: string;
  ok: boolean;
  reward: number | null;
  seconds: number | null;
  retries?: number;
  cached?: boolean;
  hidden?: boolean;
}

type Numbers = (number | null)[];

export interface Trained {
  advantages?: Numbers;
  values?: Numbers;
  returns?: Numbers;
  learner_logprobs?: Numbers;
  reference_logprobs?: Numbers;
  entropies?: Numbers;
  loss_mask?: boolean[];
  clipped?: boolean[];
}

export interface Step {
  response_ids: number[];
  logprobs: Numbers;
  text: string;
  finish_reason: string;
  reward: number | null;
  terminated: boolean;
  truncated: boolean;
  tools: Tool[];
  prefilled: number;
  new_row: boolean;
  privileged?: string;
  server?: { prompt: Message[]; seconds: number; usage: { prompt_tokens: number; response_tokens: number }; reasoning?: string };
  trained?: Trained;
  seconds: { context: number | null; sampling: number | null; environment: number | null };
  /** A merge patch for the state of the environment before the step. */
  state?: unknown;
}

export type PromptPart = { keep: number } | { drop: number } | { add: number[] };

export interface Exchange {
  step: number;
  at: string;
  kind: string;
  request: unknown;
  answer?: unknown;
}

export interface Shown {
  run: string;
  path: string;
  split: string;
  summary: Row;
  trajectory: {
    id: string;
    task: unknown;
    group: number;
    seed: number;
    script_hash: string;
    status: string;
    truncated_by?: string;
    seconds: number;
    initial_state?: unknown;
    error: { kind: string; message: string; place?: string; line?: string; hint?: string; traceback?: string[] } | null;
    steps: Step[];
    outcome_reward: number;
    reward_parts: Record<string, number | null>;
    messages: Message[];
    record: Exchange[];
    fork?: { parent: string; step: number };
  };
  advantages: Numbers;
  prompts: PromptPart[][];
  prompt_tokens: number[];
  texts: Record<string, string>;
  group: Row[];
}

/** The ids of the prompt of each step. */
export function promptIds(shown: Shown): number[][] {
  let before: number[] = [];
  return shown.prompts.map((parts, at) => {
    const ids: number[] = [];
    let from = 0;
    for (const part of parts) {
      if ("add" in part) for (const id of part.add) ids.push(id);
      else {
        const count = "keep" in part ? part.keep : part.drop;
        if ("keep" in part) for (let i = from; i < from + count; i += 1) ids.push(before[i]!);
        from += count;
      }
    }
    before = ids.concat(shown.trajectory.steps[at]!.response_ids);
    return ids;
  });
}
