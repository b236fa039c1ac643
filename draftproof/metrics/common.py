"""Names, buckets and labels that the metrics of all processes share, and what keeps a metric from failing a request."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

log = structlog.get_logger(__name__)

# a second series per counter and histogram that nothing here reads
disable_created_metrics()  # type: ignore[no-untyped-call]

PREFIX = "draftproof"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WIRE_SECONDS = (0.00025, *SECONDS)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
ENCODINGS = ("lattice", "sparse", "dense", "one_hot", "none")
OTHER = "other"

P = ParamSpec("P")
R = TypeVar("R", bound="Counting")


class Counting(Protocol):
    """Knows where to count an event that was lost."""

    @property
    def failed_to_record(self) -> Callable[[str], None]:
        """Counts it; called from an exception handler."""
        ...


class Recorder:
    """Base of the metrics of one process. What its methods record may be lost; they never raise."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._errors = Counter(
            f"{PREFIX}_metrics_errors",
            "Events that could not be recorded; the first of each kind is in the log. Anything but 0 is a bug.",
            registry=registry,
        )
        self._build = Gauge(
            f"{PREFIX}_build_info",
            "Release, role, model and weights (first 16 hex digits of their SHA-256) of this process; always 1.",
            ["version", "role", "model", "weights"],
            registry=registry,
        )
        self._logged: set[str] = set()

    def build_info(self, *, role: str, version: str, model: str = "", weights_sha256: bytes = b"") -> None:
        """Exports what runs here, as labels of a gauge that is always 1."""
        labels = {"version": version, "role": role, "model": model, "weights": weights_sha256.hex()[:16]}
        self._build.clear()  # one weights update ago it was another
        self._build.labels(**labels).set(1)

    def failed_to_record(self, what: str) -> None:
        """Counts an event that was lost; called from an exception handler."""
        self._errors.inc()
        if what not in self._logged:
            self._logged.add(what)
            log.exception("an event was not recorded", what=what)

    def reading(self, what: str, read: Callable[[], float]) -> Callable[[], float]:
        """A gauge's source that gives NaN where it would raise: one gauge must not cost the whole scrape."""

        def guarded() -> float:
            try:
                return float(read())
            except Exception:
                self.failed_to_record(what)
                return math.nan

        return guarded


def never_raises(method: Callable[Concatenate[R, P], None]) -> Callable[Concatenate[R, P], None]:
    """A method that records: a mistake in it is counted and logged, and costs no request."""

    @functools.wraps(method)
    def recorded(self: R, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            self.failed_to_record(method.__name__)

    return recorded


def create_children(metric: Counter, label: str, values: Iterable[str]) -> None:
    """Creates the children, so that zeros exist before the first event."""
    for value in values:
        metric.labels(**{label: value})


class Names:
    """Keeps the values of a label bounded: past `limit` different ones, all others share "other"."""

    def __init__(self, known: Iterable[str] = (), limit: int = 0) -> None:
        self._known = set(known)
        self._limit = max(limit, len(self._known))

    def __call__(self, name: str) -> str:
        """The name, or "other"."""
        if name in self._known:
            return name
        if len(self._known) < self._limit:
            self._known.add(name)
            return name
        return OTHER
