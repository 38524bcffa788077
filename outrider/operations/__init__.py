"""What an operator does: set up, examine, look at messages, replay and redact. The CLI and Django call these."""
