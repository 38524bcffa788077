"""`python -m outbox.cli` is `outbox`, where the script is not on the path."""

from outbox.cli import main

if __name__ == "__main__":
    main()
