"""
The settings of each process, and how they are loaded.

One module for each audience: database (every command), service (relay, scheduler and worker), relay, scheduler, worker.
"""
