"""`python -m outrider` is the command `outrider`, where the script is not on the path."""

from outrider.cli import main

main()
