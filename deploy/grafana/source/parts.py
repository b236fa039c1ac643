"""What the dashboards share: variables, links, and panels with the settings that all of them want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as shared
from grafana_foundation_sdk.models import dashboard as models

DATASOURCE = shared.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, RED = "green", "#EAB839", "red"
_TAG = "draftproof"
EVENTS = ("cps", "reqps")
"""Units of events per second."""

P = TypeVar("P", timeseries.Panel, stat.Panel, bargauge.Panel)


@dataclass(frozen=True, slots=True)
class Query:
    """One line or group of lines of a panel: PromQL and its legend."""

    expr: str
    legend: str = "{{instance}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What every panel has to say of itself.

    Attributes:
        title: short.
        what: what it shows.
        good: what good looks like, and what to look at when it doesn't.
        unit: of Grafana's units.
        span: width of 24.
        height: in grid rows.
    """

    title: str
    what: str
    good: str
    unit: str
    span: int = 12
    height: int = 8

    @property
    def description(self) -> str:
        """The panel's help."""
        return f"{self.what}\n\nGood: {self.good}"


def new(title: str, uid: str, description: str) -> builders.Dashboard:
    """A dashboard that nobody edits by hand, with its variables and a link to the others."""
    return (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([_TAG])
        .readonly()
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("Draftproof")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("job", "Job", "label_values(draftproof_build_info, job)"))
        .with_variable(_variable("instance", "Instance", 'label_values(draftproof_build_info{job=~"$job"}, instance)'))
    )


def lines(about: About, *queries: Query, stacked: bool = False, top: float | None = None) -> timeseries.Panel:
    """Lines over time. `top` fixes the axis' upper end."""
    panel = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(shared.VisibilityMode.NEVER)
        .min(0)
        .legend(
            common.VizLegendOptions()
            .display_mode(shared.LegendDisplayMode.LIST)
            .placement(shared.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(shared.TooltipDisplayMode.MULTI).sort(shared.SortOrder.DESCENDING))
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(shared.StackingMode.NORMAL).group("A"))
    if top is not None:
        panel = panel.max(top)
    elif about.unit in EVENTS:
        # an axis for nothing at all would reach to 100
        panel = panel.axis_soft_max(1)
    return _complete(panel, about, queries)


def number(about: About, query: Query, steps: Sequence[tuple[float | None, str]] = ((None, GREEN),)) -> stat.Panel:
    """One number with its recent past behind it, coloured by thresholds."""
    panel = (
        stat.Panel()
        .graph_mode(shared.BigValueGraphMode.AREA)
        .color_mode(shared.BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(steps))
    )
    return _complete(panel, about, [query])


def bars(about: About, *queries: Query) -> bargauge.Panel:
    """One bar per series, of a share in 0..1."""
    panel = (
        bargauge.Panel()
        .orientation(shared.VizOrientation.HORIZONTAL)
        .display_mode(shared.BarGaugeDisplayMode.GRADIENT)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds([(None, RED), (0.3, YELLOW), (0.6, GREEN)]))
        .min(0)
        .max(1)
    )
    return _complete(panel, about, queries)


def _complete(panel: P, about: About, queries: Sequence[Query]) -> P:
    panel = panel.title(about.title).description(about.description).unit(about.unit).datasource(DATASOURCE)
    panel = panel.span(about.span).height(about.height)
    for index, query in enumerate(queries):
        panel = panel.with_target(
            prometheus.Dataquery()
            .expr(query.expr)
            .legend_format(query.legend)
            .ref_id(chr(ord("A") + index))
            .datasource(DATASOURCE)
        )
    return panel


def _thresholds(steps: Sequence[tuple[float | None, str]]) -> builders.ThresholdsConfig:
    return (
        builders.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in steps])
    )


def _variable(name: str, label: str, query: str) -> builders.QueryVariable:
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .include_all(True)
        .all_value(".+")
        .multi(True)
        .current(everything)
    )
