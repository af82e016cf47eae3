"""Relax on a Prefect server: deployments, the server itself, schedules and automations."""
