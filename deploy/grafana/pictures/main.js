// Draws one committed dashboard from recorded data with Grafana's own components: ?acceptance.json or ?latency.json.
import { createElement as h } from "react";
import { createRoot } from "react-dom/client";
import {
  createTheme,
  dateTime,
  FieldType,
  getDisplayProcessor,
  getDisplayValueAlignmentFactors,
  toDataFrame,
} from "@grafana/data";
import { BarGauge, BigValue, PanelChrome, ThemeContext, TimeSeries } from "@grafana/ui";

const WIDTH = 1680;
const UNIT = 38; // height of a grid row, its gap included
const GAP = 8;
const theme = createTheme({ colors: { mode: "dark" } });
const timeZone = "utc";

function frames(panel, series) {
  const { color, custom, mappings, ...defaults } = panel.fieldConfig.defaults;
  return series.map(({ legend, points }, index) => {
    const frame = toDataFrame({
      fields: [
        { name: "Time", type: FieldType.time, values: points.map(([time]) => time * 1000) },
        {
          name: legend,
          type: FieldType.number,
          values: points.map(([, value]) => value),
          config: {
            ...defaults,
            displayName: legend,
            color: color ?? { mode: panel.type === "timeseries" ? "palette-classic" : "thresholds" },
            custom: { lineInterpolation: "linear", spanNulls: false, ...custom },
          },
        },
      ],
    });
    frame.fields.forEach((field) => (field.display = getDisplayProcessor({ field, theme, timeZone })));
    const known = points.map(([, value]) => value).filter((value) => value !== null);
    const [min, max] = [Math.min(...known), Math.max(...known)];
    frame.fields[1].state = { seriesIndex: index, displayName: legend, range: { min, max, delta: max - min } };
    return frame;
  });
}

const last = (field) => field.values.findLast((value) => value !== null);

function Chart({ panel, recorded, width, height }) {
  const data = frames(panel, recorded.series[panel.title] ?? []);
  const shown = data.map((frame) => frame.fields[1]);
  if (panel.type === "timeseries") {
    const timeRange = { from: dateTime(recorded.from * 1000), to: dateTime(recorded.to * 1000) };
    timeRange.raw = { from: timeRange.from, to: timeRange.to };
    const legend = { calcs: [], ...panel.options.legend };
    return h(TimeSeries, { frames: data, timeRange, timeZone, width, height, legend, structureRev: 1, options: {} });
  }
  if (panel.type === "stat") {
    const [field] = shown;
    const sparkline = { x: data[0].fields[0], y: field };
    const { graphMode, colorMode } = panel.options;
    return h(BigValue, { value: field.display(last(field)), sparkline, graphMode, colorMode, width, height, theme });
  }
  const size = Math.min(40, Math.floor(height / shown.length));
  const values = shown.map((field) => ({ ...field.display(last(field)), title: field.name }));
  // one scale and one size of text for all bars
  const alignmentFactors = getDisplayValueAlignmentFactors(values.map((display) => ({ display })));
  const bars = shown.map((field, index) =>
    h(BarGauge, {
      key: field.name,
      field: field.config,
      display: field.display,
      value: values[index],
      alignmentFactors,
      orientation: panel.options.orientation,
      displayMode: panel.options.displayMode,
      showUnfilled: true,
      itemSpacing: 4,
      width,
      height: size - 4,
      theme,
    })
  );
  return h("div", { style: { display: "grid", gap: 4 } }, bars);
}

function place({ x = 0, y = 0, w, h: rows }) {
  const column = WIDTH / 24;
  return { left: x * column, top: y * UNIT, width: w * column - GAP, height: rows * UNIT - GAP };
}

function Board({ board, recorded }) {
  const bottom = Math.max(...board.panels.map(({ gridPos: { y = 0, h } }) => y + h));
  const cells = board.panels.map((panel, index) => {
    const { left, top, width, height } = place(panel.gridPos);
    const style = { position: "absolute", left: left + GAP, top, width, height };
    if (panel.type === "row") {
      return h("div", { key: index, style: { ...style, fontSize: 16, fontWeight: 500, lineHeight: "30px" } }, panel.title);
    }
    const draw = (innerWidth, innerHeight) => h(Chart, { panel, recorded, width: innerWidth, height: innerHeight });
    const { title, description } = panel;
    return h("div", { key: index, style }, h(PanelChrome, { title, description, width, height }, draw));
  });
  const style = {
    position: "relative",
    width: WIDTH + GAP,
    height: bottom * UNIT + 56,
    color: theme.colors.text.primary,
    background: theme.colors.background.canvas,
  };
  const head = h("div", { style: { fontSize: 20, padding: "12px 8px", height: 32 } }, board.title);
  return h("div", { id: "board", style }, head, h("div", { style: { position: "absolute", top: 56 } }, cells));
}

const name = window.location.search.slice(1);
const [board, recorded] = await Promise.all(
  [name, `recorded-${name}`].map((file) => fetch(`/${file}`).then((answer) => answer.json()))
);
createRoot(document.getElementById("root")).render(
  h(ThemeContext.Provider, { value: theme }, h(Board, { board, recorded }))
);
