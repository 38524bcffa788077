"""What a message is, and how it is stored: the row, the SQL about it and the store that runs it."""
