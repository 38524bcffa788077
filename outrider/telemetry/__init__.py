"""What a service reports: logs, metrics, health, HTTP endpoints, StatsD and Sentry."""
