"""The message and its tables: rows, named queries, connections, and the store that runs the queries."""
