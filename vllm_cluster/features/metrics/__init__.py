"""Targets, rules and a dashboard for monitoring: `metrics`."""
