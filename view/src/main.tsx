// The page: navigation, keys, and the part that the address names.
import "uplot/dist/uPlot.min.css";
import "./app.css";
import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { connect, isStatic, useConnected } from "./data";
import { GroupPage } from "./group";
import { Evaluation, ScriptPage } from "./pages";
import { Runs } from "./runs";
import { Trajectories } from "./table";
import { TrajectoryPage } from "./trajectory";
import { href, setParams, useRoute } from "./util";

const KEYS: [string, string][] = [
  ["1", "runs"],
  ["2", "evaluations"],
  ["/", "filter"],
  ["↑ ↓ or k j, Enter", "move in a table, open"],
  ["[ ]", "previous and next trajectory of the group"],
  ["t", "conversation or tokens"],
  ["u", "one level up"],
  ["?", "this list"],
];

function useKeys(help: { current: HTMLDialogElement | null }): void {
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const types = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !/^(checkbox|range)$/.test((target as HTMLInputElement).type);
      if (event.key === "Escape" && types) target.blur();
      if (types || event.ctrlKey || event.metaKey || event.altKey) return;
      const { parts, params } = read();
      const [page, run = ""] = parts;
      const actions: Record<string, () => void> = {
        "1": () => (location.hash = href(["runs"])),
        "2": () => (location.hash = href(["evals"])),
        "/": () => document.getElementById("filter")?.focus(),
        "[": () => document.getElementById("previous")?.click(),
        "]": () => document.getElementById("next")?.click(),
        "?": () => help.current?.showModal(),
        t: () => page === "t" && setParams({ view: params.get("view") === "tokens" ? undefined : "tokens", step: undefined }),
        u: () => (location.hash = page === "t" || page === "group" ? href(["trajectories", run]) : href(["runs"])),
      };
      const action = actions[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

const read = () => {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").map(decodeURIComponent), params: new URLSearchParams(query) };
};

function Page() {
  const { parts } = useRoute();
  const [page = "runs", run = "", a = "", b = "", c = ""] = parts;
  switch (page) {
    case "runs":
      return <Runs />;
    case "trajectories":
      return <Trajectories key={run} run={run} />;
    case "t":
      return <TrajectoryPage run={run} id={a} />;
    case "group":
      return <GroupPage key={parts.join()} run={run} split={a} step={b} group={c} />;
    case "script":
      return <ScriptPage run={run} />;
    case "evals":
      return <Evaluation />;
    default:
      return <p>There is no such page. <a href={href(["runs"])}>Runs</a></p>;
  }
}

function App() {
  const help = useRef<HTMLDialogElement>(null);
  const online = useConnected();
  const { parts } = useRoute();
  useKeys(help);
  const [page = "runs", run] = parts;
  useEffect(() => {
    document.title = [...parts.slice(1), "r1 view"].join(" · ");
  }, [parts.join()]);
  const current = (name: string) => (page === name ? ("page" as const) : undefined);
  return (
    <>
      <header class="top">
        <nav aria-label="Pages">
          <b>r1</b>
          <a href={href(["runs"])} aria-current={current("runs")}>Runs</a>
          {run && page !== "evals" && <a href={href(["trajectories", run])} aria-current={current("trajectories")}>Trajectories</a>}
          {run && page !== "evals" && <a href={href(["script", run])} aria-current={current("script")}>Script</a>}
          <a href={href(["evals"])} aria-current={current("evals")}>Evaluations</a>
        </nav>
        <span role="status" class={`live ${online ? "on" : ""}`}>{isStatic ? "copy" : online ? "live" : "offline"}</span>
        <button aria-label="Keys" onClick={() => help.current?.showModal()}>?</button>
      </header>
      <main><Page /></main>
      <dialog ref={help} aria-label="Keys" onClick={() => help.current?.close()}>
        <dl>{KEYS.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>
      </dialog>
    </>
  );
}

connect();
render(<App />, document.getElementById("app")!);
