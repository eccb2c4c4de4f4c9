// A chart of one metric: a line for each run, marks where a script was replaced.
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import { num } from "./util";

export interface Mark {
  x: number;
  label: string;
}

export interface Curve {
  run: string;
  color: string;
  dash: number[];
  x: number[];
  /** `null`: not a finite number. */
  y: (number | null)[];
  marks: Mark[];
}

/**
 * An exponential moving average, corrected for its start, so that a constant stays constant. Missing
 * values stay missing. It is computed from all values: its result does not depend on the width.
 */
export function smooth(values: (number | null)[], weight: number): (number | null)[] {
  if (weight === 0) return values;
  let [sum, share] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + (1 - weight) * value;
    share = share * weight + (1 - weight);
    return sum / share;
  });
}

function style(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export interface ChartProps {
  title: string;
  curves: Curve[];
  xLabel: string;
  xFormat: (x: number) => string;
  weight: number;
  height: number;
  onMark: (run: string) => void;
}

export function Chart({ title, curves, xLabel, xFormat, weight, height, onMark }: ChartProps) {
  const holder = useRef<HTMLDivElement>(null);
  const readout = useRef<HTMLDivElement>(null);
  const at = useRef<HTMLSpanElement>(null);
  const plot = useRef<uPlot>();
  const latest = useRef(curves);
  latest.current = curves;
  const shape = `${curves.map((one) => `${one.run}${one.color}`).join("|")}|${xLabel}|${weight > 0}`;

  const data = useMemo(() => {
    const tables = curves.map((one): uPlot.AlignedData => {
      const raw = one.y as (number | null | undefined)[];
      return weight > 0 ? [one.x, raw, smooth(one.y, weight)] : [one.x, raw];
    });
    return tables.length ? uPlot.join(tables) : ([[]] as unknown as uPlot.AlignedData);
  }, [curves, weight]);

  const show = (u: uPlot | undefined, index: number | null | undefined) => {
    const element = readout.current;
    if (!element) return;
    element.replaceChildren();
    const x = index == null ? undefined : u?.data[0][index];
    if (at.current) at.current.textContent = x === undefined ? "" : xFormat(x);
    const per = weight > 0 ? 2 : 1;
    latest.current.forEach((one, number) => {
      const values = u?.data[1 + number * per + per - 1] ?? [];
      const raw = u?.data[1 + number * per] ?? [];
      let where = index ?? values.length - 1;
      // The nearest value before the cursor: another run may have steps that this one lacks.
      while (where >= 0 && values[where] === undefined) where -= 1;
      const value = values[where];
      if (where < 0) return;
      const item = document.createElement("span");
      item.className = "value";
      const swatch = document.createElement("i");
      swatch.style.backgroundColor = one.color;
      const smoothed = per === 2 && raw[where] !== value ? ` (${num(raw[where] as number)})` : "";
      const text = value === null ? "not finite" : num(value as number) + smoothed;
      const name = latest.current.length > 1 ? `${one.run} ` : "";
      item.append(swatch, `${name}${text}`);
      item.title = one.run;
      element.append(item);
    });
  };

  useLayoutEffect(() => {
    const element = holder.current;
    if (!element) return;
    const axis = { stroke: style("--muted"), grid: { stroke: style("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const series: uPlot.Series[] = [{}];
    for (const one of latest.current) {
      const line = { stroke: one.color, dash: one.dash, width: 1.5, spanGaps: false };
      const points = (u: uPlot, at: number) => (u.data[at] as unknown[]).filter((value) => value != null).length < 30;
      if (weight > 0) series.push({ stroke: `${one.color}55`, width: 1, points: { show: false } });
      series.push({ ...line, points: { show: points, size: 4, fill: one.color } });
    }
    const drawMarks = (u: uPlot) => {
      u.ctx.save();
      u.ctx.textAlign = "left";
      u.ctx.font = `${10 * devicePixelRatio}px system-ui`;
      for (const one of latest.current) {
        u.ctx.strokeStyle = one.color;
        u.ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
        for (const mark of one.marks) {
          const x = u.valToPos(mark.x, "x", true);
          if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
          u.ctx.beginPath();
          u.ctx.moveTo(x, u.bbox.top);
          u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
          u.ctx.stroke();
          u.ctx.fillStyle = axis.stroke;
          u.ctx.fillText(mark.label, x + 3 * devicePixelRatio, u.bbox.top + 10 * devicePixelRatio);
        }
      }
      u.ctx.restore();
    };
    const click = (u: uPlot) => {
      u.over.addEventListener("click", (event) => {
        for (const one of latest.current) {
          const near = one.marks.some((mark) => Math.abs(u.valToPos(mark.x, "x") - event.offsetX) < 8);
          if (near) return onMark(one.run);
        }
      });
    };
    const made = new uPlot(
      {
        width: element.clientWidth || 300,
        height,
        series,
        legend: { show: false },
        padding: [8, 8, 0, 0],
        cursor: { sync: { key: xLabel }, points: { size: 6 }, y: false, drag: { x: true, y: false } },
        scales: { x: { time: false } },
        axes: [
          { ...axis, size: 24, values: (_, ticks) => ticks.map(xFormat) },
          { ...axis, size: 52, values: (_, ticks) => ticks.map((value) => num(value)) },
        ],
        hooks: { draw: [drawMarks], setCursor: [(u) => show(u, u.cursor.idx)], ready: [click] },
      },
      data,
      element,
    );
    plot.current = made;
    show(made, null);
    const resize = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      made.destroy();
      plot.current = undefined;
    };
  }, [shape, height]);

  useEffect(() => {
    // The user's zoom stays while values arrive.
    const u = plot.current;
    if (!u) return;
    const all = u.data[0];
    const { min, max } = u.scales.x!;
    const zoomed = all.length > 1 && min != null && max != null && (min > all[0]! || max < all[all.length - 1]!);
    u.setData(data, !zoomed);
    show(u, u.cursor.idx);
  }, [data]);

  const summary = curves.map((one) => {
    const values = one.y.filter((value): value is number => value !== null);
    if (!values.length) return `${one.run}: no values`;
    const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    return `${one.run}: last ${num(values[values.length - 1])}, lowest ${num(low)}, highest ${num(high)}`;
  });
  return (
    <figure class="chart">
      <figcaption>
        <b>{title}</b> <span class="dim" ref={at} />
        <div class="values" ref={readout} style={{ minHeight: `${Math.ceil(curves.length / 2) * 16}px` }} />
      </figcaption>
      <div ref={holder} role="img" aria-label={`${title} by ${xLabel}. ${summary.join(". ")}`} style={{ height: `${height}px` }} />
    </figure>
  );
}
