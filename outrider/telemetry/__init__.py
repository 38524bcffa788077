"""What a service tells the outside: logs, metrics, health."""
