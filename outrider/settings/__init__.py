"""What can be set, and where the values come from."""
