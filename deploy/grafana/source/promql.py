"""PromQL in the few shapes that the panels need: counters always rated, sums always before ratios."""

from __future__ import annotations

_SELECT = 'job=~"$job", instance=~"$instance"'
WINDOW = "$__rate_interval"


def series(metric: str, **labels: str) -> str:
    """A selector; label values may begin with an operator: part="!=draft"."""
    extra = "".join(f", {label}{_match(value)}" for label, value in labels.items())
    return f"draftproof_{metric}{{{_SELECT}{extra}}}"


def rate(metric: str, *by: str, **labels: str) -> str:
    """Rate per second of a counter, summed over what is not in `by`."""
    return f"{total(*by)} (rate({series(metric, **labels)}[{WINDOW}]))"


def ratio(above: str, below: str) -> str:
    """A quotient of sums; no point where there is nothing to divide by."""
    return f"{above} / ({below} > 0)"


def mean(histogram: str, *by: str, **labels: str) -> str:
    """Mean of a histogram's observations."""
    return ratio(rate(f"{histogram}_sum", *by, **labels), rate(f"{histogram}_count", *by, **labels))


def quantile(q: float, histogram: str, *by: str, **labels: str) -> str:
    """Quantile of a histogram's observations."""
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', 'le', *by, **labels)})"


def gauge(metric: str, *by: str, **labels: str) -> str:
    """A gauge, summed over what is not in `by`."""
    return f"{total(*by)} ({series(metric, **labels)})"


def total(*by: str) -> str:
    """The head of a sum."""
    return f"sum by ({', '.join(by)})" if by else "sum"


def _match(value: str) -> str:
    for operator in ("!=", "!~", "=~"):
        if value.startswith(operator):
            return f'{operator}"{value.removeprefix(operator)}"'
    return f'="{value}"'
