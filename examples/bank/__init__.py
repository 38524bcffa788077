"""A bank: an event-sourced application with outrider and psycopg. docs/event-sourcing.md builds it step by step."""
