"""
What an operator does: set up the database, diagnose it, read the state, inspect, retry, replay and discard messages.

The CLI and the Django admin are front ends of these modules. Nothing here prints.
"""
