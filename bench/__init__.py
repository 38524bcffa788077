"""
Benchmarks: this outbox compared with the limits of its servers and with its alternatives.

Every result is a ratio of two measurements, taken in turn in one run on one machine. A rate is reported only after
every message was found in the queue, by count and by id. No test asserts a time.
"""
