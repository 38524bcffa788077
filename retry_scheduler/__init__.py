"""
The retry-scheduler: delivers the messages that the relay did not, with backoff, lease recovery and dead letters.

Any number of schedulers can run at the same time: a row is claimed by one of them at a time.
"""
