"""Pictures of the dashboards for the docs, drawn from a live cluster; a tool, no part of the product."""
