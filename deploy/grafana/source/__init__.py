"""What Grafana reads, as code; `python -m deploy.grafana.source` writes it."""

GRAFANA = "13.2.3"
"""Release of Grafana that the dashboards are for: the image's tag, and the charts of the pictures."""
