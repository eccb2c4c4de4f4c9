// The state of the environment, and what each step changed in it.
import type { Shown } from "./types";
import { href, LongText, visible } from "./util";

type Fields = Record<string, unknown>;

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A value after a merge patch (RFC 7396). */
export function patched(target: unknown, patch: unknown): unknown {
  if (!isFields(patch)) return patch;
  // Without a prototype, so that `__proto__` is a name like any other.
  const fields: Fields = Object.assign(Object.create(null), isFields(target) ? target : {});
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete fields[name];
    else fields[name] = patched(fields[name], value);
  }
  return fields;
}

interface Change {
  path: string;
  before: unknown;
  after: unknown;
}

/** The values that a patch changes; undefined is a value that is absent. */
function changes(before: unknown, patch: Fields, path = ""): Change[] {
  return Object.entries(patch).flatMap(([name, value]) => {
    const was = isFields(before) ? before[name] : undefined;
    const place = path ? `${path}.${name}` : name;
    if (isFields(value) && isFields(was)) return changes(was, value, place);
    return [{ path: place, before: was, after: value ?? undefined }];
  });
}

function shownAs(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

export function State({ shown }: { shown: Shown }) {
  const { initial_state: initial, steps, id } = shown.trajectory;
  if (initial === undefined && steps.every((step) => step.state === undefined)) {
    return <p>No state is stored: it is too large or no plain data, or an earlier version of r1 wrote the file.</p>;
  }
  let state: unknown = initial ?? {};
  return (
    <section aria-label="State of the environment" class="state">
      <details>
        <summary>After reset</summary>
        <pre class="prompt"><LongText text={JSON.stringify(state, null, 2)} /></pre>
      </details>
      {steps.map((step, at) => {
        const before = state;
        if (step.state !== undefined) state = patched(state, step.state);
        const all = isFields(step.state) ? changes(before, step.state) : [];
        return (
          <article key={at}>
            <h3><a href={href(["t", shown.run, id], { view: "tokens", step: String(at) })}>step {at}</a></h3>
            {step.state === undefined ? <p class="hint">Not stored</p> : all.length === 0 && <p class="hint">No change</p>}
            {all.length > 0 && (
              <dl>
                {all.map((change) => (
                  <div key={change.path}>
                    <dt><code>{visible(change.path)}</code></dt>
                    <dd>
                      {change.before !== undefined && <del aria-label="before"><LongText text={shownAs(change.before)} first={400} /></del>}
                      {change.after !== undefined && <ins aria-label="after"><LongText text={shownAs(change.after)} first={400} /></ins>}
                    </dd>
                  </div>
                ))}
              </dl>
            )}
            {step.state !== undefined && (
              <details>
                <summary>Whole state</summary>
                <pre class="prompt"><LongText text={JSON.stringify(state, null, 2)} /></pre>
              </details>
            )}
          </article>
        );
      })}
    </section>
  );
}
