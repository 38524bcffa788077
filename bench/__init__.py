"""
Benchmarks: where this outbox stands beside the limits of its servers and beside what users would pick instead.

Every result is a ratio of two things that were measured in turn, in one run, on one machine. A rate is reported only
after every message was found in the queue, by count and by id. Nothing here asserts a time.
"""
