"""
The retry-scheduler: delivers what the relay did not, with backoff, stale recovery and dead letters.

Start as many as you like: a row is claimed by one of them at a time.
"""
