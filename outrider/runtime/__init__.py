"""What a running service needs: its command line, shutdown, wake-ups, reconnecting, presence and crash points."""
